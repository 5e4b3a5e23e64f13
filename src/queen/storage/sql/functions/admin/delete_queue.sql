-- Removes a queue with everything in it; false when there is none.
--
-- What is staged goes first, as the relay locks it before any seal. Then the seal is taken
-- exclusively, so that no append is half-way through.
create or replace function queen.delete_queue(p_name text) returns boolean
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_queue integer;
begin
    delete from staged s where s.queue = p_name and s.deliver_at is not null;
    delete from staged s where s.queue = p_name and s.deliver_at is null;
    if found then
        delete from staged_commits c
         where not exists (
            select 1 from staged s where s.transaction = c.transaction and s.deliver_at is null);
    end if;
    delete from job_results r where r.queue = p_name;
    delete from job_keys k where k.queue = p_name;
    select id into v_queue from queues where name = p_name;
    if v_queue is null then
        return false;
    end if;
    perform pg_advisory_xact_lock(7001, v_queue);
    -- From here on nobody creates cursors: see `queen.open_cursor`.
    perform 1 from groups g where g.queue_id = v_queue order by g.id for update;
    delete from segments where queue_id = v_queue;
    delete from merged_segments where queue_id = v_queue;
    delete from cursors c using partitions p
     where p.queue_id = v_queue and c.partition_id = p.id;
    delete from shared_spans s using partitions p
     where p.queue_id = v_queue and s.partition_id = p.id;
    delete from dead_letters d using partitions p
     where p.queue_id = v_queue and d.partition_id = p.id;
    delete from dedup_index d using partitions p
     where p.queue_id = v_queue and d.partition_id = p.id;
    delete from traces t using partitions p
     where p.queue_id = v_queue and t.partition_id = p.id;
    delete from partitions where queue_id = v_queue;
    delete from groups where queue_id = v_queue;
    delete from queues where id = v_queue;
    return true;
end
$$;
