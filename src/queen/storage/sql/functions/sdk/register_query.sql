-- Notes a query under its name, and answers its id, whether it is new, whether its state was
-- removed, and the hash of the definition that counts.
--
-- Another definition counts only with a reset: the state is removed and the id is a new one,
-- so that a runner of the old definition can write no more. Without it nothing changes, and
-- the hash that is answered is not the caller's.
create or replace function queen.register_query(
    p_name text, p_source text, p_sink text, p_hash text, p_reset boolean
) returns table (query_id uuid, is_fresh boolean, was_reset boolean, hash text)
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    q record;
begin
    insert into queries as n (name, source_queue, sink_queue, config_hash)
    values (p_name, p_source, p_sink, p_hash)
        on conflict (source_queue, name) do nothing
    returning n.id into query_id;
    is_fresh := found;
    if is_fresh then
        -- Its state needs messages in order.
        update groups g set shared = false
          from queues s
         where s.name = p_source and g.queue_id = s.id and g.name = 'streams.' || p_name
           and g.shared;
    end if;
    was_reset := false;
    hash := p_hash;
    if not is_fresh then
        select n.id, n.config_hash into q
          from queries n where n.source_queue = p_source and n.name = p_name for update;
        query_id := q.id;
        hash := q.config_hash;
        if q.config_hash <> p_hash and p_reset then
            delete from query_lanes l where l.query_id = q.id;
            update queries n
               set id = gen_random_uuid(), sink_queue = p_sink, config_hash = p_hash,
                   is_windowed = false, updated_at = clock_timestamp()
             where n.id = q.id
            returning n.id, n.config_hash into query_id, hash;
            was_reset := true;
        end if;
    end if;
    return next;
end
$$;
