-- Moves a group of a stream: the first window it gets is the first one that ends after an
-- instant. Leases end: their holders' acks are refused from now on.
create or replace function queen.seek_stream(p_group integer, p_at timestamptz) returns boolean
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_stream integer;
begin
    perform pg_advisory_xact_lock(7003, p_group);
    select stream_id into v_stream from stream_groups where id = p_group for no key update;
    if v_stream is null then
        return false;
    end if;
    with gone as (
        delete from stream_work k where k.group_id = p_group returning k.state
    )
    update stream_groups g
       set starts_at = p_at, used_at = clock_timestamp(),
           done = g.done + (select count(*) from gone where state = 2),
           -- Ids follow the ends of windows.
           frontier = coalesce((
                select max(w.id) from stream_windows w
                 where w.stream_id = v_stream and w.ends_at = (
                    select max(e.ends_at) from stream_windows e
                     where e.stream_id = v_stream and e.ends_at <= p_at)), 0)
     where g.id = p_group;
    return true;
end
$$;
