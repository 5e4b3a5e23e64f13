-- Whether a group of a queue is that of a query of the streaming SDK, by the name that the SDK gives
-- it, or because the query has read as this group before. Its state needs messages in order.
create or replace function queen.is_query_group(p_queue text, p_group text)
returns boolean
language sql stable
set search_path = queen, pg_temp
as $$
    select exists (
        select from queries k
         where k.source_queue = p_queue
           and (p_group = 'streams.' || k.name
                or exists (select from query_lanes l
                            where l.query_id = k.id and l.consumer_group = p_group)))
$$;
