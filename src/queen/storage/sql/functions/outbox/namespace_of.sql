-- The namespace of a queue, or the one it gets when a push makes it; see core/names.py.
create or replace function queen.namespace_of(p_queue text) returns text
language sql stable
as $$
    select coalesce((select q.namespace from queen.queues q where q.name = p_queue),
                    split_part(p_queue, '.', 1))
$$;
