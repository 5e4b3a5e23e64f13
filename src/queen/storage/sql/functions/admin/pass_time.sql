-- Lets time pass for one queue, or (null) for all of them: every instant that is stored of it
-- moves into the past by so many seconds. Returns the queues whose time has passed: a stream
-- has one time for all its sources, so these go together.
--
-- Only servers that were started for tests offer this. The clock itself cannot be moved, but
-- whoever compares what is stored with the clock cannot tell the difference. Not moved: seals,
-- traces and the numbers about the past, whose order with the present must stay as it is.
create or replace function queen.pass_time(p_queue text, p_seconds double precision)
returns setof integer
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_by interval := make_interval(secs => p_seconds);
    v_ids integer[];
begin
    with recursive together (id) as (
        select q.id from queues q where p_queue is null or q.name = p_queue
         union
        select o.queue_id from together t
          join stream_sources r on r.queue_id = t.id
          join stream_sources o on o.stream_id = r.stream_id
    )
    select array_agg(t.id order by t.id) into v_ids from together t;
    -- Seals, then partitions, then cursors, as everywhere.
    for i in 1 .. coalesce(cardinality(v_ids), 0) loop
        perform pg_advisory_xact_lock(7001, v_ids[i]);
    end loop;
    perform 1 from partitions p where p.queue_id = any (v_ids) order by p.id for no key update;
    update partitions p set head_at = p.head_at - v_by, created_at = p.created_at - v_by
     where p.queue_id = any (v_ids);
    update segments s set created_at = s.created_at - v_by where s.queue_id = any (v_ids);

    perform 1 from cursors c join groups g on g.id = c.group_id
     where g.queue_id = any (v_ids) order by c.partition_id, c.group_id for no key update of c;
    update cursors c set lease_until = c.lease_until - v_by, retry_at = c.retry_at - v_by
      from groups g where g.id = c.group_id and g.queue_id = any (v_ids);

    update groups g set starts_at = g.starts_at - v_by, used_at = g.used_at - v_by,
                        created_at = g.created_at - v_by
     where g.queue_id = any (v_ids);
    update dead_letters d set created_at = d.created_at - v_by, failed_at = d.failed_at - v_by
     where d.queue_id = any (v_ids);
    -- What is staged may be for a queue that does not exist yet.
    update staged s set deliver_at = s.deliver_at - v_by, staged_at = s.staged_at - v_by
     where p_queue is null or s.queue = p_queue;
    perform queen.pass_stream_time(v_ids, v_by);
    return query select unnest(v_ids);
end
$$;
