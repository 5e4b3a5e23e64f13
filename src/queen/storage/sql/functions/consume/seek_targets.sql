-- Where a seek would move a group: one row per partition, in order.
--
-- p_partition  only this one; null means all of the queue
-- p_at         to the first message written at or after this; `-infinity` is the beginning,
--              `infinity` the end
-- p_offset     to this offset instead, as far as it exists
--
-- `again` counts messages that are done and would come again, `skipped` those that are not and
-- would not come.
create or replace function queen.seek_targets(
    p_group integer, p_partition bigint, p_at timestamptz, p_offset bigint
) returns table (
    partition_id bigint, has_cursor boolean, old_offset bigint, new_offset bigint,
    again bigint, skipped bigint
)
language sql stable
as $$
    select t.id, t.has_cursor, t.old_offset, t.new_offset,
           greatest(coalesce(t.handed, t.old_offset) - t.new_offset - coalesce(u.behind, 0), 0),
           greatest(t.new_offset - coalesce(t.handed, t.old_offset), 0)
               + coalesce(t.in_flight - u.behind, 0)
      from (
        select p.id, c.committed is not null or g.reads_by_time as has_cursor,
               queen.next_offset(p, c.committed, g.starts_at) as old_offset,
               case when p_offset is not null then least(greatest(p_offset, p.tail), p.head)
                    else queen.next_offset(p, null, p_at) end as new_offset,
               c.handed, c.in_flight, c.group_id
          from queen.groups g
          join queen.partitions p on p.queue_id = g.queue_id
          left join queen.cursors c on c.partition_id = p.id and c.group_id = g.id
         where g.id = p_group and (p_partition is null or p.id = p_partition)
      ) t
      -- In a shared group, what is not done behind the new position.
      left join lateral (
        select coalesce(sum(queen.left_in(queen.trim_span(s, t.new_offset))), 0)::bigint as behind
          from queen.shared_spans s
         where s.partition_id = t.id and s.group_id = t.group_id and s.end_offset > t.new_offset
      ) u on t.handed is not null
     order by t.id
$$;
