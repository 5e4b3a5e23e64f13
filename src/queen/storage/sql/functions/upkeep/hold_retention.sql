-- Keeps the clean-up of completed messages away from some queues until the transaction ends.
--
-- Whoever moves a group back calls it before the first look at what is there:
-- `queen.expire_segments` reads how far groups are and removes what they have done, with the
-- same lock held exclusively in between. So a move comes before that reading, and what it moves to stays; or after the
-- removal, and it says so.
--
-- It is the first lock of all:
--   retention of the queue (advisory 7004, by id) -> group -> partitions by id -> cursors
create or replace function queen.hold_retention(p_queues integer[]) returns void
language plpgsql
set search_path = queen, pg_temp
as $$
begin
    perform pg_advisory_xact_lock_shared(7004, w.id)
       from (select distinct q as id from unnest(p_queues) q order by 1) w;
end
$$;
