-- The condition that dead letters `d` match a filter of which these parts are given, as text with
-- the parameters $1 to $8.
--
-- What is not asked is not in it, so that each filter gets a plan and an index of its own: with a
-- million dead letters, one plan for all filters reads all of them. No value becomes text.
create or replace function queen.letters_where(
    p_queue integer,
    p_partition bigint,
    p_group text,
    p_error text,
    p_since timestamptz,
    p_until timestamptz,
    p_namespaces text[],
    p_ids bigint[]
) returns text
language sql immutable
as $$
    select concat_ws(' and ', 'true',
        case when p_ids is not null then 'd.id = any ($8)' end,
        case when p_queue is not null then 'd.queue_id = $1' end,
        case when p_partition is not null then 'd.partition_id = $2' end,
        case when p_group is not null then 'd.consumer_group = $3' end,
        -- By its hash, which has an index, and then by itself.
        case when p_error = '' then '(d.error is null or d.error = '''')'
             when p_error is not null then 'md5(d.error) = md5($4) and d.error = $4' end,
        case when p_since is not null then 'd.failed_at >= $5' end,
        case when p_until is not null then 'd.failed_at < $6' end,
        case when p_namespaces is not null then 'd.queue_id in (
            select q.id from queen.queues q where q.namespace = any ($7))' end,
        -- An index by queue and error serves all queues, if they are named.
        case when p_error <> '' and p_queue is null and p_namespaces is null
             then 'd.queue_id in (select q.id from queen.queues q)' end)
$$;
