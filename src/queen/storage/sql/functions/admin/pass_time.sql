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
    -- The relay locks what is staged and then partitions, which is the other way round: so it has
    -- no round under way meanwhile. Whoever waits for that holds nothing yet.
    perform pg_advisory_xact_lock(7002, hashtext('relay'));
    with recursive together (id) as (
        select q.id from queues q where p_queue is null or q.name = p_queue
         union
        select o.queue_id from together t
          join stream_sources r on r.queue_id = t.id
          join stream_sources o on o.stream_id = r.stream_id
    )
    select array_agg(t.id order by t.id) into v_ids from together t;
    -- Seals, then partitions, what paces groups, then cursors, as everywhere.
    for i in 1 .. coalesce(cardinality(v_ids), 0) loop
        perform pg_advisory_xact_lock(7001, v_ids[i]);
    end loop;
    perform 1 from partitions p where p.queue_id = any (v_ids) order by p.id for no key update;
    update partitions p set head_at = p.head_at - v_by, created_at = p.created_at - v_by
     where p.queue_id = any (v_ids);
    update segments s set created_at = s.created_at - v_by where s.queue_id = any (v_ids);
    update merged_segments m
       set first_at = m.first_at - v_by, last_at = m.last_at - v_by,
           stretch_times = array(select w.at - v_by from unnest(m.stretch_times)
                                 with ordinality w (at, n) order by w.n)
     where m.queue_id = any (v_ids);
    update queues q set merged_until = q.merged_until - v_by where q.id = any (v_ids);

    update paced_queues b set filled_at = b.filled_at - v_by where b.queue_id = any (v_ids);
    update paced_groups b set filled_at = b.filled_at - v_by
      from groups g where g.id = b.group_id and g.queue_id = any (v_ids);
    update paced_partitions b set filled_at = b.filled_at - v_by
      from groups g where g.id = b.group_id and g.queue_id = any (v_ids);

    update group_breakers b
       set opened_at = b.opened_at - v_by, probe_at = b.probe_at - v_by,
           probe_claim_until = b.probe_claim_until - v_by
      from groups g where g.id = b.group_id and g.queue_id = any (v_ids);
    perform 1 from cursors c join groups g on g.id = c.group_id
     where g.queue_id = any (v_ids) order by c.partition_id, c.group_id for no key update of c;
    update cursors c set lease_until = c.lease_until - v_by, retry_at = c.retry_at - v_by
      from groups g where g.id = c.group_id and g.queue_id = any (v_ids);

    update shared_spans s set due_at = s.due_at - v_by
      from groups g where g.id = s.group_id and g.queue_id = any (v_ids);

    update groups g set starts_at = g.starts_at - v_by, used_at = g.used_at - v_by,
                        created_at = g.created_at - v_by
     where g.queue_id = any (v_ids);
    update dead_letters d set created_at = d.created_at - v_by, failed_at = d.failed_at - v_by
     where d.queue_id = any (v_ids);
    -- The calendar of a schedule goes on: its next tick keeps its name, and comes due sooner. What
    -- it has staged is moved after it, so that ticks keep their order.
    update schedules c set due_at = c.due_at - v_by where p_queue is null or c.queue = p_queue;
    -- What is staged may be for a queue that does not exist yet.
    update staged s set deliver_at = s.deliver_at - v_by, staged_at = s.staged_at - v_by
     where p_queue is null or s.queue = p_queue;
    update job_results r set expires_at = r.expires_at - v_by, finished_at = r.finished_at - v_by
     where p_queue is null or r.queue = p_queue;
    update job_keys k set held_until = k.held_until - v_by, checked_at = k.checked_at - v_by
     where p_queue is null or k.queue = p_queue;
    perform queen.pass_stream_time(v_ids, v_by);
    return query select unnest(v_ids);
end
$$;
