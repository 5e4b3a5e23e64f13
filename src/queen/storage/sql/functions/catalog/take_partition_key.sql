-- Lets a partition be inserted when nobody has its key; otherwise the row is left out. A key that
-- somebody is about to insert or to give up is waited for.
create or replace function queen.take_partition_key() returns trigger
language plpgsql
set search_path = queen, pg_temp
as $$
begin
    -- Who has the key may give it up between the two looks.
    for v_try in 1 .. 10 loop
        insert into partition_keys (id, queue_id, name) values (new.id, new.queue_id, new.name)
            on conflict do nothing;
        if found then
            return new;
        end if;
        if exists (select 1 from partitions p where p.id = new.id)
           or exists (select 1 from partitions p
                       where p.queue_id = new.queue_id and p.name = new.name)
        then
            return null;
        end if;
    end loop;
    raise exception 'partition % has a key and no row; data alone are restored without triggers',
        new.id;
end
$$;
