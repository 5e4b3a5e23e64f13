-- Whether queues are sealed up to an instant, and nothing was written to them since.
create or replace function queen.is_quiet(p_queues integer[], p_since timestamptz)
returns boolean
language plpgsql
stable
set search_path = queen, pg_temp
as $$
begin
    return not exists (
            select 1 from queues q where q.id = any (p_queues) and q.sealed_until < p_since)
       and not exists (
            select 1 from unnest(p_queues) w (id) cross join lateral (
                select 1 from segments s
                 where s.queue_id = w.id and s.created_at >= p_since limit 1) f)
       and not exists (
            select 1 from merged_segments m
             where m.queue_id = any (p_queues) and m.last_at >= p_since);
end
$$;
