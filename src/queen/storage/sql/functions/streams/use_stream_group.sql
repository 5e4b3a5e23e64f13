-- Notes that somebody uses a group, once a minute. Whoever has the row just now is not waited
-- for: the caller may hold rows of work, which come after the group in the order of locks.
create or replace function queen.use_stream_group(p_group integer, p_used_at timestamptz)
returns void
language sql
set search_path = queen, pg_temp
as $$
    update stream_groups g set used_at = clock_timestamp()
     where p_used_at < clock_timestamp() - interval '1 minute' and g.id = (
        select s.id from stream_groups s where s.id = p_group for no key update skip locked)
$$;
