-- Takes the next windows over from the plan of a stream into the work of a group; returns how
-- many it looked at. The first of each key are open at once, as many as may be in flight
-- together.
--
-- An ack that frees the next window of a key holds the lock of the group shared, so that it
-- either sees the rows of this call or this call sees what it has finished.
create or replace function queen.fill_work(p_group integer, p_limit integer)
returns bigint
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    g record;
    v_last bigint;
    v_looked bigint;
begin
    perform pg_advisory_xact_lock(7003, p_group);
    select w.stream_id, queen.stream_history(w.stream_id, w.starts_at, w.frontier) as frontier,
           (s.definition ->> 'maxInFlight')::integer as in_flight
      into g
      from stream_groups w join streams s on s.id = w.stream_id where w.id = p_group;
    with next as (
        select w.id, w.key, row_number() over (partition by w.key order by w.id) as n from (
            select s.id, s.key from stream_windows s
             where s.stream_id = g.stream_id and s.id > g.frontier
             order by s.id limit p_limit
        ) w
    ), taken as (
        insert into stream_work (group_id, window_id, key, state)
        select p_group, n.id, n.key,
               case when n.n + before.unfinished <= g.in_flight then 1 else 0 end
          from next n
         cross join lateral (
            select count(*) as unfinished from (
                select 1 from stream_work k
                 where k.group_id = p_group and k.key = n.key and k.state < 2 limit g.in_flight
            ) k
         ) before
            -- A dead window that was put back to work after a seek is there already.
            on conflict do nothing
    )
    select count(*), max(id) into v_looked, v_last from next;
    update stream_groups set frontier = coalesce(v_last, g.frontier)
     where id = p_group and frontier < coalesce(v_last, g.frontier);
    return v_looked;
end
$$;
