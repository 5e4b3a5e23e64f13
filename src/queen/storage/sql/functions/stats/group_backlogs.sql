-- What each group has before it in each partition of a range of ids, at an instant.
--
-- One row per partition and group of its queue, or one with a null group when there is none.
-- `next_offset` is the first one the group has not done: its cursor's, or where its subscription
-- starts, but never before what retention has left. `leased` counts what a live lease covers,
-- `live` says whether there is one and `lease_id` which, `begun` whether there is a cursor or none
-- is needed. In a shared group `ahead` counts what is done behind the first one that is not, and
-- `leases` those that live.
--
-- No `set` clause: the planner puts the body in place of the call.
create or replace function queen.group_backlogs(p_low bigint, p_high bigint, p_at timestamptz)
returns table (
    partition_id bigint, queue_id integer, head bigint, tail bigint, group_id integer,
    next_offset bigint, leased bigint, live boolean, begun boolean, lease_id uuid,
    ahead bigint, leases bigint
)
language sql stable
as $$
    select p.id, p.queue_id, p.head, p.tail, g.id, w.next_offset,
           case when c.lease_until > p_at then greatest(c.batch_end - w.next_offset, 0)
                else coalesce(c.in_flight, 0) end,
           coalesce(c.lease_until > p_at or c.in_flight > 0, false), c.committed is not null or g.reads_by_time,
           case when c.lease_until > p_at then c.lease_id end,
           least(queen.done_ahead(c), p.head - w.next_offset),
           case when c.in_flight > 0 then (
               select count(*) from queen.shared_spans s
                where s.partition_id = p.id and s.group_id = g.id
                  and s.lease_id is not null and s.due_at > p_at) else 0 end
      from queen.partitions p
      left join queen.groups g on g.queue_id = p.queue_id
      left join queen.cursors c on c.partition_id = p.id and c.group_id = g.id
           -- Said again for the planner, which would read all cursors otherwise.
           and c.partition_id > p_low and c.partition_id <= p_high
     cross join lateral (
        select least(p.head, greatest(p.tail, case
            when c.committed is not null then c.committed
            when g.starts_at is null then p.tail
            when p.head_at < g.starts_at then p.head
            when (select s.created_at from queen.segments s where s.partition_id = p.id
                   order by s.base_offset limit 1) >= g.starts_at then p.tail
            else queen.offset_at(p.id, g.starts_at)
        end)) as next_offset
     ) w
     where p.id > p_low and p.id <= p_high
$$;
