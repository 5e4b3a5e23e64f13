-- The last window of a stream that a group has nothing to do with: all up to its frontier, and
-- all that ended before it starts. Ids follow the ends of windows.
create or replace function queen.stream_history(
    p_stream integer, p_starts_at timestamptz, p_frontier bigint
) returns bigint
language sql stable
set search_path = queen, pg_temp
as $$
    select greatest(p_frontier, (
        select max(w.id) from stream_windows w
         where w.stream_id = p_stream and w.ends_at = (
            select max(e.ends_at) from stream_windows e
             where e.stream_id = p_stream and e.ends_at <= p_starts_at)))
$$;
