-- The oldest message of a queue that a living group of a stream may still need, as an instant.
-- Null when no group of any stream reads the queue.
--
-- p_live_since   groups that were used since then are alive
create or replace function queen.stream_floor(p_queue integer, p_live_since timestamptz)
returns timestamptz
language sql stable
set search_path = queen, pg_temp
as $$
    select min(least(
               -- What is not planned yet; a window that slides reaches back.
               coalesce(s.planned_until, '-infinity')
                   - coalesce((s.definition ->> 'windowDurationMs')::bigint, 0)
                     * interval '1 millisecond',
               (select min(o.begins_at) from stream_open o where o.stream_id = s.id),
               (select min(w.starts_at) from stream_work k
                  join stream_windows w on w.stream_id = s.id and w.id = k.window_id
                 where k.group_id = g.id and k.state < 2),
               -- Windows of equal length start in the order of their ids; others need a look.
               (select min(n.starts_at) from stream_windows n
                 where n.stream_id = s.id and n.id > g.frontier and n.ends_at > g.starts_at
                   and (s.definition ->> 'windowType' in ('session', 'count') or n.id = (
                        select min(f.id) from stream_windows f
                         where f.stream_id = s.id and f.id > g.frontier)))
           ))
      from stream_sources r
      join streams s on s.id = r.stream_id
      join stream_groups g on g.stream_id = s.id
     where r.queue_id = p_queue and g.used_at >= p_live_since
$$;
