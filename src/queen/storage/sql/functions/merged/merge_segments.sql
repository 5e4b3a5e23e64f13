-- Puts merged segments in the place of small ones, and notes up to where a queue is merged.
--
-- p_partition, p_base, p_version, p_run
--          the segments that go: where they stand, which version of them was read, and in which
--          merged segment they are found, counted from 1
-- p_codec, p_hashes, p_body
--          the merged segments
--
-- A merged segment of which one row is not there any more as it was read, or is held by somebody,
-- is left out, and those rows stay small. Nothing happens, and the answer is null, when the queue
-- has other options than those that the caller has read, or when somebody is at it just now.
-- Otherwise it is how many rows are gone.
--
-- It waits for nobody, because others would wait for it meanwhile. Retention is not at work: the
-- caller holds its job. Segments -> queue (advisory 7001) -> queue (row), each only if it is free.
create or replace function queen.merge_segments(
    p_queue integer, p_revision integer, p_until timestamptz,
    p_partition bigint[], p_base bigint[], p_version text[], p_run integer[],
    p_codec smallint[], p_hashes bytea[], p_body bytea[]
) returns integer
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_runs integer[];
    v_gone integer;
begin
    select coalesce(array_agg(a.run), '{}') into v_runs
      from (select u.run, count(*) as n from unnest(p_run) u (run) group by u.run) a
      join (
        select h.run, count(*) as n from (
            select w.run
              from unnest(p_partition, p_base, p_version, p_run)
                   as w (partition_id, base_offset, version, run)
              join segments s on s.partition_id = w.partition_id and s.base_offset = w.base_offset
                             and s.xmin::text = w.version
               for update of s skip locked
        ) h group by h.run
      ) held on held.run = a.run and held.n = a.n;

    if not pg_try_advisory_xact_lock_shared(7001, p_queue) then
        return null;
    end if;
    perform from queues q where q.id = p_queue and q.revision = p_revision
        for no key update skip locked;
    if not found then
        return null;
    end if;
    update queues q set merged_until = p_until where q.id = p_queue;

    with gone as (
        delete from segments s using unnest(p_partition, p_base, p_run)
                                     as w (partition_id, base_offset, run)
         where w.run = any (v_runs)
           and s.partition_id = w.partition_id and s.base_offset = w.base_offset
        returning w.run, s.partition_id, s.base_offset, s.end_offset, s.created_at
    ), runs as (
        select g.partition_id, min(g.base_offset) as base_offset, max(g.end_offset) as end_offset,
               array_agg(g.end_offset order by g.base_offset) as ends,
               array_agg(g.created_at order by g.base_offset) as times
          from gone g group by g.run, g.partition_id
    ), noted as (
        insert into merged_segments (partition_id, base_offset, end_offset, queue_id, first_at,
                                     last_at, stretch_ends, stretch_times)
        select r.partition_id, r.base_offset, r.end_offset, p_queue, r.times[1],
               r.times[cardinality(r.times)],
               array(select (e.stop - r.base_offset)::integer
                       from unnest(r.ends) with ordinality e (stop, n) order by e.n), r.times
          from runs r
    )
    select count(*) into v_gone from gone;

    insert into segments
        (partition_id, base_offset, end_offset, created_at, queue_id, codec, hashes, body)
    select w.partition_id, w.base_offset, m.end_offset, m.first_at, p_queue, n.codec, n.hashes,
           n.body
      from (
        select u.run, min(u.partition_id) as partition_id, min(u.base_offset) as base_offset
          from unnest(p_partition, p_base, p_run) u (partition_id, base_offset, run)
         where u.run = any (v_runs) group by u.run
      ) w
      join unnest(p_codec, p_hashes, p_body) with ordinality n (codec, hashes, body, run)
        on n.run = w.run
      join merged_segments m
        on m.partition_id = w.partition_id and m.base_offset = w.base_offset;
    return v_gone;
end
$$;
