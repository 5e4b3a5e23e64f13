-- Creates the cursor of a group in a partition it has not read yet, and locks it. One that somebody
-- else has created meanwhile stays as it is.
--
-- It starts where the group's subscription says: at the first message written at or after
-- `starts_at`, or at the oldest one.
create or replace function queen.open_cursor(p_partition bigint, p_group integer)
returns queen.cursors
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    c cursors%rowtype;
begin
    insert into cursors (partition_id, group_id, committed)
    select p.id, g.id, queen.offset_at(p.id, coalesce(g.starts_at, '-infinity'))
      from partitions p join groups g on g.id = p_group and g.queue_id = p.queue_id
     where p.id = p_partition;
    select * into c from cursors k
     where k.partition_id = p_partition and k.group_id = p_group
       for no key update;
    return c;
end
$$;
