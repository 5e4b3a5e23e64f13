-- Changes what is named of a queue's configuration and leaves the rest, in one step: two who change
-- different options at once both get theirs.
--
-- Without a queue and without leave to create one, nothing comes back. A caller that has seen
-- another revision is refused, unless the queue already is what it asks for: then its first try
-- got through and the answer was lost.
create or replace function queen.alter_queue(
    p_name text, p_create boolean, p_namespace text, p_task text,
    p_options jsonb, p_unset text[], p_revision integer
) returns table (
    id integer, revision integer, is_new boolean, is_refused boolean,
    old_namespace text, old_task text, old_options jsonb,
    namespace text, task text, options jsonb
)
language plpgsql
set search_path = queen, pg_temp
as $$
#variable_conflict use_column
declare
    v queues%rowtype;
    v_now queues%rowtype;
    v_is_new boolean := false;
    v_is_refused boolean := false;
begin
    select * into v from queues q where q.name = p_name for update;
    if v.id is null then
        if not p_create then
            return;
        end if;
        insert into queues (name, namespace, task, options, is_indexed)
        values (p_name, coalesce(p_namespace, ''), coalesce(p_task, ''), p_options,
                coalesce(p_options ->> 'dedup', 'window') = 'forever')
            on conflict (name) do nothing
        returning * into v;
        v_is_new := v.id is not null;
        if not v_is_new then
            -- Somebody else has just made it; it is theirs, and changed like any other.
            select * into v from queues q where q.name = p_name for update;
            if v.id is null then
                return;
            end if;
        end if;
    end if;
    v_now := v;
    v_now.namespace := coalesce(p_namespace, v.namespace);
    v_now.task := coalesce(p_task, v.task);
    v_now.options := (v.options || p_options) - p_unset;
    if (v.namespace, v.task, v.options)
            is distinct from (v_now.namespace, v_now.task, v_now.options) then
        v_is_refused := coalesce(p_revision <> v.revision, false);
        if not v_is_refused then
            perform configure_queue(p_name, v_now.namespace, v_now.task, v_now.options);
            select * into v_now from queues q where q.name = p_name;
        end if;
    end if;
    return query select v.id, v_now.revision, v_is_new, v_is_refused,
                        v.namespace, v.task, v.options,
                        v_now.namespace, v_now.task, v_now.options;
end
$$;
