-- A page of the windows of a stream as a group sees them, of one key or (null) of all: in a
-- state the oldest first, without one and in the state `done` the newest first.
--
-- Each state is found by an index of its own, so that a page costs what is on it.
create or replace function queen.pick_windows(
    p_group integer, p_key text, p_state text, p_limit integer, p_offset integer
) returns table (window_id bigint, rank bigint)
language plpgsql stable
set search_path = queen, pg_temp
as $$
#variable_conflict use_column
declare
    g record;
    v_now timestamptz := clock_timestamp();
    v_history bigint;
    v_last bigint;
begin
    select s.stream_id, s.starts_at, s.frontier into g from stream_groups s where s.id = p_group;
    v_history := queen.stream_history(g.stream_id, g.starts_at, 0);
    -- What is not taken over from the plan is not done.
    v_last := case when p_state is null then 9223372036854775807 else g.frontier end;
    if p_state in ('waiting', 'ready', 'leased', 'retrying') then
        return query
            select k.window_id, k.window_id from stream_work k
             where k.group_id = p_group and k.state < 2 and (p_key is null or k.key = p_key)
               and p_state = case when k.state = 0 then 'waiting'
                                  when k.available_at <= v_now then 'ready'
                                  when k.lease_id is not null then 'leased'
                                  else 'retrying' end
             order by k.window_id limit p_limit offset p_offset;
    elsif p_state = 'dead' then
        return query
            select d.window_id, d.window_id from stream_dead d
             where d.group_id = p_group and (p_key is null or p_key = (
                select w.key from stream_windows w
                 where w.stream_id = g.stream_id and w.id = d.window_id))
             order by d.window_id limit p_limit offset p_offset;
    elsif p_state = 'planned' and p_key is null then
        return query
            select w.id, w.id from stream_windows w
             where w.stream_id = g.stream_id and w.id > greatest(g.frontier, v_history)
             order by w.id limit p_limit offset p_offset;
    elsif p_state = 'planned' then
        return query
            select w.id, w.id from stream_windows w
             where w.stream_id = g.stream_id and w.key = p_key
               and w.id > greatest(g.frontier, v_history)
             order by w.id limit p_limit offset p_offset;
    elsif p_key is null then
        return query
            select w.id, -w.id from stream_windows w
             where w.stream_id = g.stream_id and w.id > v_history and w.id <= v_last
               and (p_state is null or queen.is_done(p_group, w.id))
             order by w.id desc limit p_limit offset p_offset;
    else
        return query
            select w.id, -w.id from stream_windows w
             where w.stream_id = g.stream_id and w.key = p_key and w.id > v_history and w.id <= v_last
               and (p_state is null or queen.is_done(p_group, w.id))
             order by w.id desc limit p_limit offset p_offset;
    end if;
end
$$;
