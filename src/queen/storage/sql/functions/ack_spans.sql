-- Commits whole leased spans: the common ack, where everything that was popped is done.
-- Entries come in order of (partition, group).
--
-- One row per entry: whether it was that simple, and where the cursor stands. What was not
-- (the lease is another's, covers something else, or had failures) is left to a closer look.
create or replace function queen.ack_spans(
    p_partition bigint[], p_group integer[], p_lease uuid[], p_end bigint[]
) returns table (done boolean, committed bigint)
language plpgsql
set search_path = queen, pg_temp
as $$
#variable_conflict use_column
declare
    c cursors%rowtype;
begin
    for i in 1 .. cardinality(p_partition) loop
        select * into c from cursors k
         where k.partition_id = p_partition[i] and k.group_id = p_group[i]
           for no key update;
        done := c.lease_id = p_lease[i] and c.lease_until > clock_timestamp()
                and c.batch_end = p_end[i] and c.failed is null and c.failures is null;
        if done then
            c := queen.advance(c, p_end[i]);
            update cursors k
               set committed = c.committed, acked = c.acked, attempts = 0,
                   lease_id = null, lease_until = null, batch_start = null, batch_end = null,
                   receipts = substring(substring(uuid_send(p_lease[i]) for 8)
                                        || int8send(c.committed) || k.receipts for 256)
             where k.partition_id = p_partition[i] and k.group_id = p_group[i];
        end if;
        done := coalesce(done, false);
        committed := coalesce(c.committed, 0);
        return next;
    end loop;
end
$$;
