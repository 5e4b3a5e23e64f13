-- Moves a group of a stream: the first window it gets is the first one that ends after an
-- instant. Leases end: their holders' acks are refused from now on. What the windows hold that
-- come again is not cleaned up in the same moment.
create or replace function queen.seek_stream(p_group integer, p_at timestamptz) returns boolean
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_stream integer;
    v_frontier bigint;
begin
    perform queen.hold_retention(array(
        select r.queue_id from stream_groups g join stream_sources r on r.stream_id = g.stream_id
         where g.id = p_group));
    perform pg_advisory_xact_lock(7003, p_group);
    select stream_id into v_stream from stream_groups where id = p_group for no key update;
    if v_stream is null then
        return false;
    end if;
    v_frontier := queen.stream_history(v_stream, p_at, 0);
    with gone as (
        delete from stream_work k where k.group_id = p_group returning k.state
    ), again as (
        -- What is given up and lies ahead comes again by itself.
        delete from stream_dead d where d.group_id = p_group and d.window_id > v_frontier
    )
    update stream_groups g
       set starts_at = p_at, used_at = clock_timestamp(), frontier = v_frontier,
           done = g.done + (select count(*) from gone where state = 2)
     where g.id = p_group;
    return true;
end
$$;
