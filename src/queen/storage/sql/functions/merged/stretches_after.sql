-- The next stretches of a queue behind (p_at, p_partition, p_base) and before p_before, in order of
-- (time, partition, offset): p_limit of them, with p_ties whole instants.
--
-- Segments that were never merged come along the index on time. Merged ones overlap each other, so
-- some are opened at a time, in the order in which they begin: what was written before the next
-- one begins is complete then. More are opened until there is enough.
create or replace function queen.stretches_after(
    p_queue integer, p_at timestamptz, p_partition bigint, p_base bigint, p_before timestamptz,
    p_limit integer, p_ties boolean default false
) returns table (
    partition_id bigint, base_offset bigint, end_offset bigint, created_at timestamptz,
    bytes integer, segment_base bigint
)
language plpgsql stable
set search_path = queen, pg_temp
-- In the order of the indexes, whatever the planner believes of a table that nobody has counted.
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_end timestamptz;
    v_until timestamptz;
    v_rows integer := 64;
    v_found bigint;
    v_last timestamptz;
begin
    if not exists (
        select 1 from merged_segments m
         where m.queue_id = p_queue and m.last_at >= p_at and m.first_at < p_before)
    then
        return query
            select s.partition_id, s.base_offset, s.end_offset, s.created_at, octet_length(s.body),
                   s.base_offset
              from segments s
             where s.queue_id = p_queue and s.created_at >= p_at and s.created_at < p_before
               and (s.created_at, s.partition_id, s.base_offset) > (p_at, p_partition, p_base)
               and s.created_at <= case when p_ties then coalesce((
                    select t.created_at from segments t
                     where t.queue_id = p_queue and t.created_at >= p_at and t.created_at < p_before
                     order by t.created_at offset p_limit - 1 limit 1), 'infinity')
                    else 'infinity' end
             order by s.created_at, s.partition_id, s.base_offset
             limit case when p_ties then null else p_limit end;
        return;
    end if;
    -- Up to here there are enough that were never merged.
    select s.created_at + interval '1 microsecond' into v_end from segments s
     where s.queue_id = p_queue and s.created_at >= p_at and s.created_at < p_before
       and (s.created_at, s.partition_id, s.base_offset) > (p_at, p_partition, p_base)
       and s.codec < 16
     order by s.created_at, s.partition_id, s.base_offset offset p_limit - 1 limit 1;
    v_end := coalesce(v_end, p_before);
    loop
        select m.first_at into v_until from merged_segments m
         where m.queue_id = p_queue and m.first_at > p_at and m.first_at < v_end
         order by m.first_at offset v_rows limit 1;
        v_until := coalesce(v_until, v_end);
        exit when v_until = v_end;
        select count(*) into v_found
          from (select 1 from queen.stretches_between(p_queue, p_at, v_until) w
                 where (w.created_at, w.partition_id, w.base_offset)
                       > (p_at, p_partition, p_base)
                 limit p_limit) f;
        exit when v_found = p_limit;
        v_rows := v_rows * 4;
    end loop;
    if p_ties then
        select w.created_at into v_last from queen.stretches_between(p_queue, p_at, v_until) w
         where (w.created_at, w.partition_id, w.base_offset) > (p_at, p_partition, p_base)
         order by w.created_at offset p_limit - 1 limit 1;
        v_until := least(v_until, v_last + interval '1 microsecond');
    end if;
    return query
        select w.partition_id, w.base_offset, w.end_offset, w.created_at, w.bytes, w.segment_base
          from queen.stretches_between(p_queue, p_at, v_until) w
         where (w.created_at, w.partition_id, w.base_offset) > (p_at, p_partition, p_base)
         order by w.created_at, w.partition_id, w.base_offset
         limit case when p_ties then null else p_limit end;
end
$$;
