-- The queues with names like a pattern, of some namespaces or (null) of all.
create or replace function queen.matching(p_like text, p_namespaces text[]) returns integer[]
language plpgsql
-- Not stable: it looks at what is there now, and not when the statement that calls it began.
volatile
set search_path = queen, pg_temp
as $$
begin
    return coalesce((
        select array_agg(q.id order by q.id) from queues q
         where q.name like p_like
           and (p_namespaces is null or q.namespace = any (p_namespaces))), '{}');
end
$$;
