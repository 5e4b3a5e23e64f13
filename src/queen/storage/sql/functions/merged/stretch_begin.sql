-- Where the stretch begins that holds an offset of a merged segment.
create or replace function queen.stretch_begin(p_partition bigint, p_base bigint, p_offset bigint)
returns bigint
language sql stable
set search_path = queen, pg_temp
as $$
    select p_base + coalesce(
               m.stretch_ends[width_bucket((p_offset - p_base)::integer, m.stretch_ends)], 0)
      from merged_segments m where m.partition_id = p_partition and m.base_offset = p_base
$$;
