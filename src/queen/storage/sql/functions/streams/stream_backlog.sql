-- What a group of a stream has before it.
--
-- unfinished   windows, leased ones among them; those that are not taken over from the plan are
--              counted up to p_most
-- oldest_end   when the oldest of them ended; windows get their ids in the order of their ends
--
-- Looks at nothing that is finished, however much of it there is.
create or replace function queen.stream_backlog(p_group integer, p_most integer)
returns table (unfinished bigint, leased bigint, retrying bigint, oldest_end timestamptz)
language sql stable
set search_path = queen, pg_temp
as $$
    select w.taken + n.waiting, w.leased, w.retrying, (
               select o.ends_at from stream_windows o
                where o.stream_id = g.stream_id and o.id = least(w.oldest, n.oldest))
      from stream_groups g
     cross join lateral (
        select count(*) as taken, min(k.window_id) as oldest,
               count(*) filter (where k.lease_id is not null
                                  and k.available_at > clock_timestamp()) as leased,
               count(*) filter (where k.lease_id is null and k.state = 1
                                  and k.available_at > clock_timestamp()) as retrying
          from stream_work k where k.group_id = g.id and k.state < 2
     ) w
     cross join lateral (
        select count(*) as waiting, min(f.id) as oldest from (
            select s.id from stream_windows s
             where s.stream_id = g.stream_id
               and s.id > queen.stream_history(g.stream_id, g.starts_at, g.frontier)
             order by s.id limit p_most
        ) f
     ) n
     where g.id = p_group
$$;
