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
               coalesce(s.planned_until, '-infinity') - d.reach,
               (select min(o.begins_at) from stream_open o where o.stream_id = s.id),
               case when d.is_timed then (
                   -- Windows of equal length start in the order of their ids.
                   select w.starts_at from stream_windows w
                    where w.stream_id = s.id and w.id = least(
                        (select min(k.window_id) from stream_work k
                          where k.group_id = g.id and k.state < 2),
                        (select min(n.id) from stream_windows n
                          where n.stream_id = s.id and n.id > d.frontier)))
               else least(
                   (select min(w.starts_at) from stream_work k
                      join stream_windows w on w.stream_id = s.id and w.id = k.window_id
                     where k.group_id = g.id and k.state < 2),
                   (select min(n.starts_at) from stream_windows n
                     where n.stream_id = s.id and n.id > d.frontier))
               end
           ))
      from stream_sources r
      join streams s on s.id = r.stream_id
      join stream_groups g on g.stream_id = s.id
     cross join lateral (
        select coalesce((s.definition ->> 'windowDurationMs')::bigint
                        - (s.definition ->> 'windowSlideMs')::bigint, 0)
                   * interval '1 millisecond' as reach,
               s.definition ->> 'windowType' in ('tumbling', 'sliding') as is_timed,
               queen.stream_history(s.id, g.starts_at, g.frontier) as frontier
     ) d
     where r.queue_id = p_queue and g.used_at >= p_live_since
$$;
