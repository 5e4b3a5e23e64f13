-- Removes all messages of a queue, or of one partition of it, and returns how many there were.
--
-- Offsets go on from where they are: what comes next is not what was here before.
create or replace function queen.clear_queue(p_queue integer, p_partition bigint) returns bigint
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_removed bigint;
begin
    perform pg_advisory_xact_lock(7001, p_queue);
    select coalesce(sum(w.head - w.tail), 0) into v_removed from (
        select p.head, p.tail from partitions p
         where p.queue_id = p_queue and (p_partition is null or p.id = p_partition)
         order by p.id for no key update
    ) w;
    delete from segments s
     where s.queue_id = p_queue and (p_partition is null or s.partition_id = p_partition);
    delete from merged_segments m
     where m.queue_id = p_queue and (p_partition is null or m.partition_id = p_partition);
    delete from dedup_index d using partitions p
     where p.queue_id = p_queue and d.partition_id = p.id
       and (p_partition is null or p.id = p_partition);
    update partitions p set tail = p.head
     where p.queue_id = p_queue and (p_partition is null or p.id = p_partition)
       and p.tail < p.head;
    return v_removed;
end
$$;
