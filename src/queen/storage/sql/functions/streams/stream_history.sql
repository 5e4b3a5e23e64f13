-- The last window of a stream that a group has nothing to do with: all up to its frontier, and
-- all that ended before it starts. Ids follow the ends of windows.
create or replace function queen.stream_history(
    p_stream integer, p_starts_at timestamptz, p_frontier bigint
) returns bigint
language sql stable
set search_path = queen, pg_temp
as $$
    -- In the order of ends: the largest id would be looked for through all windows.
    select greatest(p_frontier, (
        select w.id from stream_windows w
         where w.stream_id = p_stream and w.ends_at <= p_starts_at
         order by w.ends_at desc, w.id desc limit 1))
$$;
