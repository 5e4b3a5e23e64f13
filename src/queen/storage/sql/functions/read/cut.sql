-- Closes the past of several queues at one instant, and returns it: before it everything that
-- was written to any of them is visible, and nothing will ever be written again.
--
-- p_since  an instant that was returned before. When nothing was written at or after it, it is
--          returned again and nothing is sealed, so that asking often costs little. Null seals.
--
-- Call it in a transaction of its own, as `queen.seal`. Seals are taken by id, as appends do.
create or replace function queen.cut(p_queues integer[], p_since timestamptz)
returns timestamptz
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_at timestamptz;
begin
    if p_since is not null and queen.is_quiet(p_queues, p_since) then
        return p_since;
    end if;
    perform pg_advisory_xact_lock(7001, w.id)
       from (select id from unnest(p_queues) u (id) order by id) w;
    select greatest(clock_timestamp(), max(q.sealed_until)) into v_at
      from queues q where q.id = any (p_queues);
    perform 1 from queues q where q.id = any (p_queues) order by q.id for no key update;
    update queues q set sealed_until = v_at where q.id = any (p_queues);
    return v_at;
end
$$;
