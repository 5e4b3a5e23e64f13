-- The hashes of a partition's segments in [p_from, p_before), newest first, at most so many. Of a
-- merged one that begins before p_from, those from there on.
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
    select greatest(s.base_offset, p_from),
           case when s.base_offset >= p_from then s.hashes
                else substring(s.hashes from ((p_from - s.base_offset) * 8 + 1)::integer) end
      from segments s
     where s.partition_id = p_partition and s.base_offset < p_before
       and s.base_offset >= coalesce((
            select f.base_offset from segments f
             where f.partition_id = p_partition and f.base_offset <= p_from
             order by f.base_offset desc limit 1), 0)
       and s.end_offset > p_from and p_before > p_from
     order by s.base_offset desc
     limit p_limit
$$;
