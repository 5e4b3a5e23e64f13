-- Gives up the keys of partitions that were deleted, and with them what refers to them.
create or replace function queen.drop_partition_keys() returns trigger
language plpgsql
set search_path = queen, pg_temp
as $$
begin
    delete from partition_keys k using gone g where k.id = g.id;
    return null;
end
$$;
