-- Where a seek would move a group: one row per partition, in order.
--
-- p_partition  only this one; null means all of the queue
-- p_at         to the first message written at or after this; `-infinity` is the beginning,
--              `infinity` the end
-- p_offset     to this offset instead, as far as it exists
create or replace function queen.seek_targets(
    p_group integer, p_partition bigint, p_at timestamptz, p_offset bigint
) returns table (partition_id bigint, has_cursor boolean, old_offset bigint, new_offset bigint)
language sql stable
as $$
    select p.id, c.committed is not null or g.reads_by_time,
           queen.next_offset(p, c.committed, g.starts_at),
           case when p_offset is not null then least(greatest(p_offset, p.tail), p.head)
                else queen.next_offset(p, null, p_at) end
      from queen.groups g
      join queen.partitions p on p.queue_id = g.queue_id
      left join queen.cursors c on c.partition_id = p.id and c.group_id = g.id
     where g.id = p_group and (p_partition is null or p.id = p_partition)
     order by p.id
$$;
