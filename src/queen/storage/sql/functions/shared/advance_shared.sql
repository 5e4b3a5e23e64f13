-- Moves the cursor of a shared group, which the caller has locked, past what is done by now.
--
-- p_done      messages that were not done before
-- p_receipts  of leases that have ended: as `cursors.receipts`, the latest first. There are more
--             of them than of an ordered group, because more leases end at a time.
create or replace function queen.advance_shared(
    p_partition bigint, p_group integer, p_done bigint, p_receipts bytea
) returns bigint
language sql
set search_path = queen, pg_temp
as $$
    update cursors k
       set committed = queen.frontier(k), in_flight = greatest(k.in_flight - p_done, 0),
           receipts = substring(p_receipts || k.receipts for 1024),
           hops = k.hops + queen.hop(k.ctid, k.page), page = queen.page_of(k.ctid)
     where k.ctid = (
        select a.ctid from cursors a
         where a.partition_id = p_partition and a.group_id = p_group order by a.hops desc limit 1)
    returning k.committed
$$;
