-- Lets a partition be inserted when nobody has its key; otherwise the row is left out. A key that
-- somebody is about to insert is waited for.
create or replace function queen.take_partition_key() returns trigger
language plpgsql
set search_path = queen, pg_temp
as $$
begin
    insert into partition_keys (id, queue_id, name) values (new.id, new.queue_id, new.name)
        on conflict do nothing;
    return case when found then new end;
end
$$;
