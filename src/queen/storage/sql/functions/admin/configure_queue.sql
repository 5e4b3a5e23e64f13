-- Creates a queue or overwrites its configuration, and returns its id.
--
-- A change waits, with the seal, for the appends under way: whoever comes later is told by the
-- revision that the queue is not what it remembers. A queue that turns to `forever` has no
-- index of what it already holds; from here on every append adds to it, and the rest is added
-- beside the traffic (`queen.index_some`). Until that is done its horizon is the window.
create or replace function queen.configure_queue(
    p_name text, p_namespace text, p_task text, p_options jsonb
) returns integer
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v queues%rowtype;
    v_forever boolean := coalesce(p_options ->> 'dedup', 'window') = 'forever';
begin
    select * into v from queues where name = p_name for update;
    if v.id is null then
        insert into queues (name, namespace, task, options, is_indexed)
        values (p_name, p_namespace, p_task, p_options, v_forever)
            on conflict (name) do nothing
        returning id into v.id;
        if v.id is not null then
            return v.id;
        end if;
        select * into v from queues where name = p_name for update;
    end if;
    if (v.namespace, v.task, v.options) is not distinct from (p_namespace, p_task, p_options) then
        return v.id;
    end if;
    perform pg_advisory_xact_lock(7001, v.id);
    update queues q
       set namespace = p_namespace, task = p_task, options = p_options, revision = q.revision + 1,
           is_indexed = v_forever and (q.is_indexed or not exists (
               select 1 from partitions p where p.queue_id = q.id and p.head > p.tail))
     where q.id = v.id;
    return v.id;
end
$$;
