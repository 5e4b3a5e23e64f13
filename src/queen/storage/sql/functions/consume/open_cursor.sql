-- Creates the cursor of a group in a partition it has not read yet, and locks it. One that somebody
-- else has created meanwhile stays as it is.
--
-- It starts where the group's subscription says: at the first message written at or after
-- `starts_at`, or at the oldest one.
--
-- A group that somebody deletes just now gets none, or it would stay when the group is gone; and
-- whoever deletes one waits for cursors that are being created. Nobody waits for a group here,
-- because others wait for cursors that the caller has.
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
      from (select * from groups a where a.id = p_group for key share skip locked) g
      join partitions p on p.queue_id = g.queue_id
     where p.id = p_partition;
    select * into c from cursors k
     where k.partition_id = p_partition and k.group_id = p_group
       for no key update;
    return c;
end
$$;
