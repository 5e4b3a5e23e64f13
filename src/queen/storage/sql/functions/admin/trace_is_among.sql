-- Whether an event belongs to a message of one of some namespaces.
create or replace function queen.trace_is_among(p_trace bigint, p_namespaces text[])
returns boolean language sql stable parallel safe as $$
    select exists (
        select from queen.traces t
        join queen.partitions p on p.id = t.partition_id
        join queen.queues q on q.id = p.queue_id
        where t.id = p_trace and q.namespace = any (p_namespaces)
    )
$$;
