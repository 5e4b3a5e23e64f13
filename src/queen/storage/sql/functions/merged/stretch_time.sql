-- When a message of a merged segment was written.
create or replace function queen.stretch_time(p_partition bigint, p_base bigint, p_offset bigint)
returns timestamptz
language sql stable
set search_path = queen, pg_temp
as $$
    select m.stretch_times[least(width_bucket((p_offset - p_base)::integer, m.stretch_ends) + 1,
                                 cardinality(m.stretch_times))]
      from merged_segments m where m.partition_id = p_partition and m.base_offset = p_base
$$;
