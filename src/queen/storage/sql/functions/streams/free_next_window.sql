-- Opens the next window of a key whose turn has come. The caller holds the lock of the group.
create or replace function queen.free_next_window(p_group integer, p_key text) returns void
language sql
set search_path = queen, pg_temp
as $$
    update stream_work w set state = 1
     where w.group_id = p_group and w.window_id = (
        select k.window_id from stream_work k
         where k.group_id = p_group and k.key = p_key and k.state = 0
         order by k.window_id limit 1
           for no key update skip locked)
$$;
