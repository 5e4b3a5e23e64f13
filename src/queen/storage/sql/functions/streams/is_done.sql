-- Whether a group has finished a window that it has taken over from the plan.
create or replace function queen.is_done(p_group integer, p_window bigint) returns boolean
language sql stable
as $$
    select not exists (select 1 from queen.stream_work k
                        where k.group_id = p_group and k.window_id = p_window and k.state < 2)
       and not exists (select 1 from queen.stream_dead d
                        where d.group_id = p_group and d.window_id = p_window)
$$;
