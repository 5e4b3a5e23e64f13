-- The dead letters that match a filter; a null matches all.
--
-- Simple enough for the planner to put it in place of its call. The queue is a range, because
-- a plan for any argument can use an index for that and not for "null or equal".
create or replace function queen.letters_matching(
    p_queue integer,
    p_partition bigint,
    p_group text,
    p_error text,
    p_since timestamptz,
    p_until timestamptz,
    p_namespaces text[],
    p_ids bigint[]
) returns setof queen.dead_letters
language sql stable
as $$
    select d.*
      from queen.dead_letters d
     where d.queue_id between coalesce(p_queue, 0) and coalesce(p_queue, 2147483647)
       and (p_partition is null or d.partition_id = p_partition)
       and (p_group is null or d.consumer_group = p_group)
       and (p_error is null or d.error = p_error)
       and (p_since is null or d.failed_at >= p_since)
       and (p_until is null or d.failed_at < p_until)
       and (p_namespaces is null or d.queue_id in (
               select q.id from queen.queues q where q.namespace = any (p_namespaces)))
       and (p_ids is null or d.id = any (p_ids))
$$;
