-- Creates a queue or overwrites its configuration, and returns its id.
--
-- A queue that turns to `forever` gets an index of what it already holds, with the seal held
-- exclusively so that no append falls between. Messages that were stored while dedup was
-- `off` have no hashes and stay out of it.
create or replace function queen.configure_queue(
    p_name text, p_namespace text, p_task text, p_options jsonb
) returns integer
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_queue integer;
    v_before text;
begin
    select id, coalesce(options ->> 'dedup', 'window') into v_queue, v_before
      from queues where name = p_name for update;
    if v_queue is null then
        insert into queues (name, namespace, task, options)
        values (p_name, p_namespace, p_task, p_options)
            on conflict (name) do update
           set namespace = excluded.namespace, task = excluded.task, options = excluded.options
        returning id into v_queue;
        return v_queue;
    end if;
    if p_options ->> 'dedup' = 'forever' and v_before <> 'forever' then
        perform pg_advisory_xact_lock(7001, v_queue);
        insert into dedup_index (partition_id, hash, message_offset)
        select s.partition_id, substring(s.hashes from g * 8 + 1 for 8), s.base_offset + g
          from segments s
         cross join lateral generate_series(0, length(s.hashes) / 8 - 1) g
         where s.queue_id = v_queue
            on conflict do nothing;
    end if;
    update queues
       set namespace = p_namespace, task = p_task, options = p_options
     where id = v_queue;
    return v_queue;
end
$$;
