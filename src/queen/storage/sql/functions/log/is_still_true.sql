-- Whether what somebody knows of a partition, everything before p_known, is what is stored: the
-- stretch that ends there is the one that was written at p_known_at. A database that went back
-- in time, and on from there, has another one. Nothing is known of a segment into which what is
-- known was merged together with what is not: its hashes cannot be told apart by segments.
--
-- What retention has removed cannot be compared, and need not be.
create or replace function queen.is_still_true(
    p_partition bigint, p_known bigint, p_known_at timestamptz, p_head bigint,
    p_head_at timestamptz
) returns boolean
language sql stable
set search_path = queen, pg_temp
as $$
    select case
        when p_known = 0 then true
        when p_known_at is not null and p_head < p_known then false
        when p_head = p_known then coalesce(p_head_at = p_known_at, true)
        else coalesce((
            select s.end_offset = p_known and case
                       when p_known_at is null then true
                       when s.codec < 16 then s.created_at = p_known_at
                       else queen.stretch_time(s.partition_id, s.base_offset, p_known - 1)
                            = p_known_at end
              from segments s
             where s.partition_id = p_partition and s.base_offset < p_known
             order by s.base_offset desc limit 1), true)
        end
$$;
