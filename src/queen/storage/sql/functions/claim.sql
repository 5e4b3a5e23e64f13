-- Leases spans of partitions to consumers: one entry per candidate, in order of
-- (partition, group), many pops in one transaction.
--
-- p_request    candidates with the same number belong to one pop and share p_budget, the
--              messages that pop may still get
-- p_auto       committed at once instead of leased
--
-- One row per candidate, in order. Outcomes:
--   0 granted    [committed, batch_end) is the caller's; `wait_ms` is the length of the lease
--   1 empty      nothing to read
--   2 held       leased to somebody; `wait_ms` until that lease ends
--   3 missing    no such partition
--   4 spent      the pop's budget went to earlier candidates
create or replace function queen.claim(
    p_partition bigint[],
    p_group integer[],
    p_lease uuid[],
    p_lease_ms bigint[],
    p_auto boolean[],
    p_request integer[],
    p_budget integer[]
) returns table (
    outcome smallint, committed bigint, batch_end bigint, head bigint,
    epoch bigint, attempt integer, acked bytea, wait_ms bigint
)
language plpgsql
set search_path = queen, pg_temp
as $$
#variable_conflict use_column
declare
    c cursors%rowtype;
    v_head bigint;
    v_left integer[] := p_budget;
    v_now timestamptz;
begin
    -- A lost grant is a redelivery and its holder is refused, so a lease need not reach the
    -- disk before the answer. What is committed at once must.
    if not true = any (p_auto) then
        perform set_config('synchronous_commit', 'off', true);
    end if;

    for i in 1 .. cardinality(p_partition) loop
        outcome := 4; committed := 0; batch_end := 0; head := 0;
        epoch := 0; attempt := 0; acked := null; wait_ms := 0;
        if v_left[p_request[i]] <= 0 then
            return next;
            continue;
        end if;

        select * into c from cursors k
         where k.partition_id = p_partition[i] and k.group_id = p_group[i]
           for no key update;
        if not found then
            c := queen.open_cursor(p_partition[i], p_group[i]);
        end if;
        select p.head into v_head from partitions p where p.id = p_partition[i];
        if v_head is null or c.committed is null then
            outcome := 3;
            return next;
            continue;
        end if;

        v_now := clock_timestamp();
        head := v_head;
        committed := c.committed;
        if c.lease_until > v_now and c.lease_id = p_lease[i] then
            -- The same claim again, because the first answer was lost.
            outcome := 0;
            batch_end := c.batch_end;
            epoch := c.epoch;
            attempt := c.attempts;
            acked := c.acked;
            wait_ms := p_lease_ms[i];
            v_left[p_request[i]] := v_left[p_request[i]] - (batch_end - c.committed);
        elsif c.lease_until > v_now then
            outcome := 2;
            wait_ms := ceil(extract(epoch from c.lease_until - v_now) * 1000);
        elsif c.committed >= v_head then
            outcome := 1;
        else
            outcome := 0;
            -- After two failures messages come one at a time, so that a message that kills
            -- its consumer takes no neighbour with it.
            batch_end := least(v_head, c.committed
                               + case when c.attempts >= 2 then 1 else v_left[p_request[i]] end);
            epoch := c.epoch + 1;
            attempt := c.attempts + 1;
            acked := c.acked;
            wait_ms := p_lease_ms[i];
            v_left[p_request[i]] := v_left[p_request[i]] - (batch_end - c.committed);
            if p_auto[i] then
                c := queen.advance(c, batch_end);
                update cursors k
                   set committed = c.committed, epoch = claim.epoch, attempts = 0,
                       lease_id = null, lease_until = null, batch_start = null,
                       batch_end = null, acked = c.acked, failed = null
                 where k.partition_id = p_partition[i] and k.group_id = p_group[i];
            else
                update cursors k
                   set epoch = claim.epoch, attempts = claim.attempt,
                       batch_start = c.committed, batch_end = claim.batch_end,
                       lease_id = p_lease[i], failed = null,
                       lease_until = v_now + p_lease_ms[i] * interval '1 millisecond'
                 where k.partition_id = p_partition[i] and k.group_id = p_group[i];
            end if;
        end if;
        return next;
    end loop;
end
$$;
