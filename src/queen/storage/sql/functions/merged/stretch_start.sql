-- The first offset of a merged segment that was written at or after an instant; null when all of it
-- is older.
create or replace function queen.stretch_start(p_partition bigint, p_base bigint, p_at timestamptz)
returns bigint
language sql stable
set search_path = queen, pg_temp
as $$
    select case when m.first_at >= p_at then p_base
                when m.last_at >= p_at then
                    p_base + m.stretch_ends[width_bucket(p_at - interval '1 microsecond',
                                                         m.stretch_times)]
           end
      from merged_segments m where m.partition_id = p_partition and m.base_offset = p_base
$$;
