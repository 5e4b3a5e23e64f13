-- The hashes of a partition's segments in [p_from, p_before), newest first, at most so many.
--
-- Along the primary key, whatever the planner believes of a table that nobody has counted: to
-- sort would mean to read all of them for each page.
create or replace function queen.hashes_before(
    p_partition bigint, p_from bigint, p_before bigint, p_limit integer
) returns table (base_offset bigint, hashes bytea)
language sql stable
set search_path = queen, pg_temp
set enable_sort = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
    select s.base_offset, s.hashes from segments s
     where s.partition_id = p_partition and s.base_offset >= p_from and s.base_offset < p_before
     order by s.base_offset desc
     limit p_limit
$$;
