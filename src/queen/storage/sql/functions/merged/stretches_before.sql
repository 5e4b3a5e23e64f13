-- The same backwards: the last p_limit stretches of a queue before (p_at, p_partition, p_base), none
-- older than p_from, newest first.
create or replace function queen.stretches_before(
    p_queue integer, p_from timestamptz, p_at timestamptz, p_partition bigint, p_base bigint,
    p_limit integer
) returns table (
    partition_id bigint, base_offset bigint, end_offset bigint, created_at timestamptz,
    bytes integer, segment_base bigint
)
language plpgsql stable
set search_path = queen, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_behind timestamptz := p_at + interval '1 microsecond';
    v_begin timestamptz;
    v_since timestamptz;
    v_rows integer := 64;
    v_found bigint;
begin
    if not exists (
        select 1 from merged_segments m
         where m.queue_id = p_queue and m.last_at >= p_from and m.first_at <= p_at)
    then
        return query
            select s.partition_id, s.base_offset, s.end_offset, s.created_at, octet_length(s.body),
                   s.base_offset
              from segments s
             where s.queue_id = p_queue and s.created_at >= p_from and s.created_at <= p_at
               and (s.created_at, s.partition_id, s.base_offset) < (p_at, p_partition, p_base)
             order by s.created_at desc, s.partition_id desc, s.base_offset desc
             limit p_limit;
        return;
    end if;
    select s.created_at into v_begin from segments s
     where s.queue_id = p_queue and s.created_at >= p_from and s.created_at <= p_at
       and (s.created_at, s.partition_id, s.base_offset) < (p_at, p_partition, p_base)
       and s.codec < 16
     order by s.created_at desc, s.partition_id desc, s.base_offset desc
     offset p_limit - 1 limit 1;
    v_begin := coalesce(v_begin, p_from);
    loop
        -- What was written after the last message of the next one is complete.
        select m.last_at + interval '1 microsecond' into v_since from merged_segments m
         where m.queue_id = p_queue and m.last_at >= v_begin and m.last_at < p_at
         order by m.last_at desc offset v_rows limit 1;
        v_since := coalesce(v_since, v_begin);
        exit when v_since = v_begin;
        select count(*) into v_found
          from (select 1 from queen.stretches_between(p_queue, v_since, v_behind) w
                 where (w.created_at, w.partition_id, w.base_offset)
                       < (p_at, p_partition, p_base)
                 limit p_limit) f;
        exit when v_found = p_limit;
        v_rows := v_rows * 4;
    end loop;
    return query
        select w.partition_id, w.base_offset, w.end_offset, w.created_at, w.bytes, w.segment_base
          from queen.stretches_between(p_queue, v_since, v_behind) w
         where (w.created_at, w.partition_id, w.base_offset) < (p_at, p_partition, p_base)
         order by w.created_at desc, w.partition_id desc, w.base_offset desc
         limit p_limit;
end
$$;
