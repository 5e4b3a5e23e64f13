-- Removes a group's progress in its queue and, if wanted, its subscription; returns in how
-- many partitions it had any, or null when there is no such group. Dead letters stay.
--
-- Locks as a seek does: retention -> group -> cursors by (partition, group).
create or replace function queen.delete_group(p_group integer, p_metadata boolean)
returns bigint
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_queue integer;
    v_deleted bigint;
begin
    perform queen.hold_retention(array(select g.queue_id from groups g where g.id = p_group));
    select queue_id into v_queue from groups where id = p_group for update;
    if v_queue is null then
        return null;
    end if;
    perform 1
       from partitions p join cursors c on c.partition_id = p.id and c.group_id = p_group
      where p.queue_id = v_queue
      order by c.partition_id
        for update of c;
    delete from cursors c using partitions p
     where p.queue_id = v_queue and c.partition_id = p.id and c.group_id = p_group;
    get diagnostics v_deleted = row_count;
    delete from shared_spans s using partitions p
     where p.queue_id = v_queue and s.partition_id = p.id and s.group_id = p_group;
    if p_metadata then
        delete from groups where id = p_group;
    else
        update groups set starts_at = null, moves = moves + 1
         where id = p_group and reads_by_time;
    end if;
    return v_deleted;
end
$$;
