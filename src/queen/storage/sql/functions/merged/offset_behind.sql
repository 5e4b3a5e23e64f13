-- The first offset of a merged segment that stands behind a place in the order (time, partition,
-- offset), which is that of a stretch or lies outside of this segment; its end when none does.
--
-- No `set` clause: the planner puts the body in place of the call.
create or replace function queen.offset_behind(
    p_partition bigint, p_base bigint, p_at timestamptz, p_after_partition bigint,
    p_after_base bigint
) returns bigint
language sql stable
as $$
    select p_base + case
        when m.partition_id = p_after_partition and p_after_base >= p_base then
            coalesce(m.stretch_ends[width_bucket(
                least(p_after_base - p_base, 2147483647)::integer, m.stretch_ends) + 1],
                m.end_offset - p_base)
        when m.partition_id = p_after_partition then 0
        -- Of the same instant are those of a partition behind it, and not those of one before it.
        else coalesce(m.stretch_ends[width_bucket(
            p_at - case when m.partition_id > p_after_partition
                        then interval '1 microsecond' else interval '0' end,
            m.stretch_times)], 0)
        end
      from queen.merged_segments m where m.partition_id = p_partition and m.base_offset = p_base
$$;
