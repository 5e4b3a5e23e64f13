-- Gives up the keys of cursors that were deleted.
create or replace function queen.drop_cursor_keys() returns trigger
language plpgsql
set search_path = queen, pg_temp
as $$
begin
    delete from cursor_keys k using gone g
     where k.partition_id = g.partition_id and k.group_id = g.group_id;
    return null;
end
$$;
