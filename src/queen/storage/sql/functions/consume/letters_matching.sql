-- The ids of dead letters that match a filter, a null of which matches all: a page of them, the
-- latest first or the oldest first.
create or replace function queen.letters_matching(
    p_queue integer,
    p_partition bigint,
    p_group text,
    p_error text,
    p_since timestamptz,
    p_until timestamptz,
    p_namespaces text[],
    p_ids bigint[],
    p_latest boolean,
    p_limit integer,
    p_offset integer
) returns table (id bigint, rank bigint)
language plpgsql stable
as $$
begin
    return query execute format(
        'select o.id, row_number() over () from (
            select d.id from queen.dead_letters d where %s
            order by d.failed_at %s, d.id %2$s limit $9 offset $10) o',
        queen.letters_where(p_queue, p_partition, p_group, p_error, p_since, p_until,
                            p_namespaces, p_ids),
        case when p_latest then 'desc' else 'asc' end)
    using p_queue, p_partition, p_group, p_error, p_since, p_until, p_namespaces, p_ids,
          p_limit, p_offset;
end
$$;
