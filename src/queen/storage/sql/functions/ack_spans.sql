-- Commits whole leased spans: the common ack, where everything that was popped is done.
-- Entries come in order of (partition, group).
--
-- One row per entry. Outcomes:
--   0 done       the cursor stands at `committed`, the lease is over
--   1 already    this lease was acked before and the answer got lost
--   2 stale      the lease is not, or no longer, the caller's
--   3 other      the lease is the caller's but covers something else; look closer
create or replace function queen.ack_spans(
    p_partition bigint[], p_group integer[], p_lease uuid[], p_end bigint[]
) returns table (outcome smallint, committed bigint)
language plpgsql
set search_path = queen, pg_temp
as $$
#variable_conflict use_column
declare
    c cursors%rowtype;
    v_tag bytea;
begin
    for i in 1 .. cardinality(p_partition) loop
        select * into c from cursors k
         where k.partition_id = p_partition[i] and k.group_id = p_group[i]
           for no key update;
        v_tag := substring(uuid_send(p_lease[i]) for 8);
        if c.lease_id = p_lease[i] and c.lease_until > clock_timestamp() then
            if c.batch_end = p_end[i] and c.failed is null then
                c := queen.advance(c, p_end[i]);
                update cursors k
                   set committed = c.committed, acked = c.acked, failed = null, attempts = 0,
                       lease_id = null, lease_until = null, batch_end = null,
                       receipts = substring(v_tag || k.receipts for 128)
                 where k.partition_id = p_partition[i] and k.group_id = p_group[i];
                outcome := 0;
            else
                outcome := 3;
            end if;
        elsif p_end[i] <= c.committed and position(v_tag in c.receipts) > 0 then
            outcome := 1;
        else
            outcome := 2;
        end if;
        committed := coalesce(c.committed, 0);
        return next;
    end loop;
end
$$;
