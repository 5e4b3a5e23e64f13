-- Whether what somebody knows of a partition, everything before p_known, is what is stored: the
-- segment that ends there is the one that was written at p_known_at. A database that went back
-- in time, and on from there, has another one.
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
        when p_known = 0 or p_known_at is null then true
        when p_head < p_known then false
        when p_head = p_known then p_head_at = p_known_at
        else coalesce((
            select s.end_offset = p_known and s.created_at = p_known_at from segments s
             where s.partition_id = p_partition and s.base_offset < p_known
             order by s.base_offset desc limit 1), true)
        end
$$;
