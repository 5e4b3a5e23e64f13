-- Lets a cursor be inserted when nobody has its key; otherwise the one that is there is locked, and the
-- row left out. A key that somebody is about to insert is waited for.
create or replace function queen.take_cursor_key() returns trigger
language plpgsql
set search_path = queen, pg_temp
as $$
begin
    insert into cursor_keys (partition_id, group_id) values (new.partition_id, new.group_id)
        on conflict do nothing;
    if found then
        return new;
    end if;
    perform 1 from cursors k
      where k.partition_id = new.partition_id and k.group_id = new.group_id
      order by k.hops desc limit 1
        for no key update;
    return null;
end
$$;
