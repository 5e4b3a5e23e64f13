-- Whether the state of a query in a partition may be used by somebody who holds no lease, and
-- until when: answers an instant in milliseconds before which nothing can be added to the
-- partition any more, or null when its group has something left to read.
--
-- The lock waits for appends that have their time already, and those that come later get a
-- later one. The group is read after that, so what it has read is everything before now.
create or replace function queen.offer_state(p_query uuid, p_partition bigint)
returns double precision
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_queue integer;
    v_head bigint;
    v_now timestamptz;
begin
    select p.queue_id, p.head into v_queue, v_head
      from partitions p where p.id = p_partition for share;
    v_now := clock_timestamp();
    perform 1
       from query_lanes l
       join groups g on g.queue_id = v_queue and g.name = l.consumer_group
       join cursors c on c.partition_id = p_partition and c.group_id = g.id
      where l.query_id = p_query and l.partition_id = p_partition
        and c.committed >= v_head and coalesce(c.lease_until <= v_now, true);
    if not found then
        return null;
    end if;
    update query_lanes l set offered = l.epoch
     where l.query_id = p_query and l.partition_id = p_partition and l.offered < l.epoch;
    return extract(epoch from v_now) * 1000;
end
$$;
