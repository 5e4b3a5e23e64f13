-- How many of the latest dead letters that match a filter died of what, the most frequent first.
--
-- No more than `p_looked_at` are read, however many there are: what people look at is what dies now.
create or replace function queen.letter_errors(
    p_queue integer,
    p_partition bigint,
    p_group text,
    p_error text,
    p_since timestamptz,
    p_until timestamptz,
    p_namespaces text[],
    p_ids bigint[],
    p_looked_at integer,
    p_limit integer
) returns table (
    queue_id integer, consumer_group text, error text, letters bigint,
    first_at timestamptz, last_at timestamptz, looked_at bigint
)
language plpgsql stable
as $$
begin
    return query execute format(
        'select l.queue_id, l.consumer_group, coalesce(l.error, ''''), count(*), min(l.failed_at),
                max(l.failed_at), (sum(count(*)) over ())::bigint
           from (select d.queue_id, d.consumer_group, d.error, d.failed_at
                   from queen.dead_letters d where %s
                  order by d.failed_at desc, d.id desc limit $9) l
          group by l.queue_id, l.consumer_group, l.error
          order by 4 desc, 3 limit $10',
        queen.letters_where(p_queue, p_partition, p_group, p_error, p_since, p_until,
                            p_namespaces, p_ids))
    using p_queue, p_partition, p_group, p_error, p_since, p_until, p_namespaces, p_ids,
          p_looked_at, p_limit;
end
$$;
