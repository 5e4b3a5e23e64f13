-- Leases spans of partitions to consumers: one entry per candidate, in order of
-- (partition, group), many pops in one transaction.
--
-- p_request     the pop a candidate belongs to; the arrays behind it have one entry per pop
-- p_auto        acked by the caller as soon as it has read them; such a message is never given up
-- p_budget      the messages the pop may still get
-- p_retry_limit failures a message may have before it is dead; null: no limit
-- p_delay_ms    messages younger than this are not due yet
-- p_window_ms   nothing is due while the youngest message of the partition is younger than this
-- p_expiry_ms   messages older than this are passed over; 0 means never
-- p_wait_ms     how long to wait for a cursor before it all fails; 0 reports it as held instead;
--               null: as the session says
--
-- One row per candidate, in order. Outcomes:
--   0 granted    [committed, batch_end) is the caller's; `wait_ms` is the length of the lease,
--                what lies before `seen` was in a lease that lapsed
--   1 empty      nothing to read
--   2 held       leased to somebody, or not due yet; `wait_ms` until that changes
--   3 missing    no such partition
--   4 spent      the pop's budget went to earlier candidates
--   5 exhausted  the message at `committed` was delivered `attempt` times, alone, and never
--                came back: whoever sets it aside may claim again
--   6 paused     the group is given nothing
--   7 busy       somebody is at work on the cursor; `wait_ms` until it is worth another look
--   8 shared     `queen.claim_shared` has to be asked
create or replace function queen.claim(
    p_partition bigint[],
    p_group integer[],
    p_request integer[],
    p_lease uuid[],
    p_lease_ms bigint[],
    p_auto boolean[],
    p_budget integer[],
    p_retry_limit integer[],
    p_delay_ms bigint[],
    p_window_ms bigint[],
    p_expiry_ms bigint[],
    p_wait_ms integer default null
) returns table (
    outcome smallint, committed bigint, batch_end bigint, head bigint, erasures integer,
    epoch bigint, attempt integer, seen bigint, acked bytea, failures bytea, wait_ms bigint
)
language plpgsql
set search_path = queen, pg_temp
-- By their indexes, however small a table was when the plan was made.
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    c cursors%rowtype;
    v record;
    v_tid tid;
    p record;
    r integer;
    v_left integer[] := p_budget;
    v_paused integer[];
    v_shared integer[];
    v_now timestamptz;
    v_from bigint;
    v_due bigint;
    v_due_at timestamptz;
    v_careful bigint;
    v_generation bigint := nullif(current_setting('queen.generation', true), '')::bigint;
    v_told integer;
begin
    if p_wait_ms > 0 then
        perform set_config('lock_timeout', p_wait_ms::text, true);
    end if;
    -- A lost grant is a redelivery and its holder is refused, so a lease need not reach the
    -- disk before the answer. But its epoch must not come again, and a crash that loses a grant
    -- ends all connections: so each connection has a generation, higher than all before it, in
    -- the upper half of the epochs it gives. Drawing one does reach the disk.
    if v_generation is null then
        update generations set last = last + 1 returning last into v_generation;
        perform set_config('queen.generation', v_generation::text, false);
    else
        perform set_config('synchronous_commit', 'off', true);
    end if;
    select array_agg(g.id) filter (where not g.shared), array_agg(g.id) filter (where g.shared)
      into v_paused, v_shared from groups g
     where g.id = any (p_group) and (g.paused or g.reads_by_time or g.shared);

    for i in 1 .. cardinality(p_partition) loop
        r := p_request[i];
        outcome := 4; committed := 0; batch_end := 0; head := 0; erasures := 0;
        epoch := 0; attempt := 0; seen := 0; acked := null; failures := null; wait_ms := 0;
        if v_left[r] <= 0 then
            return next;
            continue;
        end if;
        if p_group[i] = any (v_paused) then
            outcome := 6;
            return next;
            continue;
        end if;
        if p_group[i] = any (v_shared) then
            outcome := 8;
            return next;
            continue;
        end if;

        -- The latest version first, and no other, as in `queen.append`.
        if p_wait_ms = 0 then
            select k.ctid as tid, k as held into v from cursors k
             where k.partition_id = p_partition[i]
               and k.group_id = p_group[i]
             order by k.hops desc limit 1
               for no key update skip locked;
            if not found and exists (
                select 1 from cursor_keys k
                 where k.partition_id = p_partition[i] and k.group_id = p_group[i])
            then
                outcome := 7; wait_ms := 100;
                return next;
                continue;
            end if;
        else
            select k.ctid as tid, k as held into v from cursors k
             where k.partition_id = p_partition[i]
               and k.group_id = p_group[i]
             order by k.hops desc limit 1
               for no key update;
        end if;
        c := v.held;
        v_tid := v.tid;
        if c.partition_id is null then
            c := queen.open_cursor(p_partition[i], p_group[i]);
            select k.ctid into v_tid from cursors k
             where k.partition_id = p_partition[i] and k.group_id = p_group[i];
        end if;
        select a.head, a.tail, a.head_at, a.erasures into p
          from partitions a where a.id = p_partition[i]
         order by a.hops desc limit 1;
        if p.head is null or c.committed is null then
            outcome := 3;
            return next;
            continue;
        end if;

        if c.handed is not null then
            -- It was shared a moment ago, and has spans.
            outcome := 8;
            return next;
            continue;
        end if;
        v_now := clock_timestamp();
        head := p.head;
        erasures := p.erasures;
        committed := c.committed;
        if c.lease_until > v_now then
            if c.lease_id = p_lease[r] then
                -- The same claim again, because the first answer was lost.
                outcome := 0;
                batch_end := c.batch_end;
                epoch := c.epoch;
                attempt := c.attempts;
                acked := c.acked;
                failures := c.failures;
                wait_ms := p_lease_ms[r];
                v_left[r] := v_left[r] - (batch_end - c.committed);
            else
                outcome := 2;
                wait_ms := queen.ms_until(c.lease_until, v_now);
            end if;
            return next;
            continue;
        end if;

        -- What retention has removed, and what is too old to be of use, is passed over.
        v_from := p.tail;
        if p_expiry_ms[r] > 0 and c.committed < p.head then
            v_from := greatest(v_from, queen.offset_at(
                p_partition[i], v_now - p_expiry_ms[r] * interval '1 millisecond'));
        end if;
        if c.committed < v_from then
            c := queen.advance(c, v_from);
            c.attempts := 0;
            c.batch_end := null;
            c.failed := null;
            committed := c.committed;
        end if;
        if c.committed >= p.head then
            outcome := 1;
            return next;
            continue;
        end if;

        -- The first of these instants that has not come yet holds the partition back.
        v_due := p.head;
        v_due_at := c.retry_at;
        if p_window_ms[r] > 0 then
            v_due_at := greatest(v_due_at, p.head_at + p_window_ms[r] * interval '1 millisecond');
        end if;
        if p_delay_ms[r] > 0 and p.head_at > v_now - p_delay_ms[r] * interval '1 millisecond' then
            v_due := queen.offset_at(
                p_partition[i], v_now - p_delay_ms[r] * interval '1 millisecond');
            if v_due <= c.committed then
                select greatest(v_due_at, p_delay_ms[r] * interval '1 millisecond'
                                + case when s.codec < 16 then s.created_at
                                       else queen.stretch_time(
                                           s.partition_id, s.base_offset, c.committed) end)
                  into v_due_at
                  from segments s
                 where s.partition_id = p_partition[i] and s.base_offset <= c.committed
                 order by s.base_offset desc limit 1;
            end if;
        end if;
        if v_due_at > v_now then
            outcome := 2;
            wait_ms := queen.ms_until(v_due_at, v_now);
            return next;
            continue;
        end if;

        -- A consumer that died without a word took its whole batch along. After two of them
        -- what they held comes one at a time, so that the message that kills takes no
        -- neighbour with it, and only a message that was alone is ever given up. A delivery
        -- that was answered by a failure is no death, unless the holder died over the rest.
        attempt := c.attempts;
        if c.attempts > p_retry_limit[r] and c.batch_end = c.committed + 1 and not p_auto[r] then
            outcome := 5;
            return next;
            continue;
        end if;
        v_careful := c.careful_until;
        v_told := 0;
        if c.failures is not null then
            v_told := coalesce(
                (convert_from(c.failures, 'UTF8')::json ->> c.committed::text)::integer, 0);
            c.attempts := greatest(c.attempts, v_told);
            if c.failed is not null and get_bit(c.failed, 0) = 1 then
                v_told := 0;
            end if;
        end if;
        if c.attempts - v_told >= 2 then
            v_careful := greatest(v_careful, c.batch_end, c.committed + 1);
        end if;
        outcome := 0;
        batch_end := least(v_due, c.committed
                           + case when c.committed < v_careful then 1 else v_left[r] end);
        epoch := greatest(c.epoch + 1, v_generation << 32);
        attempt := c.attempts + 1;
        seen := coalesce(c.batch_end, 0);
        acked := c.acked;
        failures := c.failures;
        wait_ms := p_lease_ms[r];
        v_left[r] := v_left[r] - (batch_end - c.committed);
        update cursors k
           set committed = c.committed, acked = c.acked,
               epoch = claim.epoch, attempts = claim.attempt,
               batch_start = c.committed, batch_end = claim.batch_end,
               lease_id = p_lease[r], failed = null, retry_at = null,
               careful_until = case when v_careful > c.committed then v_careful end,
               lease_until = v_now + p_lease_ms[r] * interval '1 millisecond',
               hops = k.hops + queen.hop(k.ctid, k.page), page = queen.page_of(k.ctid)
         where k.ctid = v_tid;
        if not found then
            raise exception 'cursor of % is not where it was locked', p_partition[i];
        end if;
        return next;
    end loop;
end
$$;
