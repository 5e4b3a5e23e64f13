-- Lets time pass for the streams over some queues, as `queen.pass_time` does for the queues.
--
-- Not moved: what sessions and counts have gathered, which only the planner can read.
create or replace function queen.pass_stream_time(p_queues integer[], p_by interval)
returns void
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_streams integer[];
begin
    select array_agg(w.id) into v_streams from (
        select s.id from streams s
         where s.id in (select r.stream_id from stream_sources r where r.queue_id = any (p_queues))
         order by s.id for no key update
    ) w;
    perform pg_advisory_xact_lock(7003, g.id)
       from (select id from stream_groups where stream_id = any (v_streams) order by id) g;
    update streams s set planned_until = s.planned_until - p_by, plan_at = '-infinity'
     where s.id = any (v_streams);
    update stream_windows w set starts_at = w.starts_at - p_by, ends_at = w.ends_at - p_by
     where w.stream_id = any (v_streams);
    update stream_open o set begins_at = o.begins_at - p_by, closes_at = o.closes_at - p_by
     where o.stream_id = any (v_streams);
    update stream_groups g
       set starts_at = g.starts_at - p_by, used_at = g.used_at - p_by,
           created_at = g.created_at - p_by, last_done_at = g.last_done_at - p_by,
           last_done_end = g.last_done_end - p_by
     where g.stream_id = any (v_streams);
    update stream_work k
       set available_at = k.available_at - p_by, granted_at = k.granted_at - p_by,
           done_at = k.done_at - p_by
      from stream_groups g where g.id = k.group_id and g.stream_id = any (v_streams);
    update stream_dead d set failed_at = d.failed_at - p_by
      from stream_groups g where g.id = d.group_id and g.stream_id = any (v_streams);
end
$$;
