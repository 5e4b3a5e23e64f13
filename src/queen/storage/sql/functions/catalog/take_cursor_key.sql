-- Lets a cursor be inserted when nobody has its key; otherwise the one that is there is locked, and the
-- row left out. A key that somebody is about to insert or to give up is waited for.
create or replace function queen.take_cursor_key() returns trigger
language plpgsql
set search_path = queen, pg_temp
as $$
begin
    -- Who has the key may give it up between the two looks.
    for v_try in 1 .. 10 loop
        insert into cursor_keys (partition_id, group_id) values (new.partition_id, new.group_id)
            on conflict do nothing;
        if found then
            return new;
        end if;
        perform 1 from cursors k
          where k.partition_id = new.partition_id and k.group_id = new.group_id
          order by k.hops desc limit 1
            for no key update;
        if found then
            return null;
        end if;
    end loop;
    raise exception 'the cursor of partition % has a key and no row; data alone are restored'
        ' without triggers', new.partition_id;
end
$$;
