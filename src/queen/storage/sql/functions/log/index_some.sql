-- Adds the next segments of a queue to the index of `dedup: forever`, oldest first, and returns
-- where it has got to; a null means that it has come to the end.
--
-- Retention may remove a segment in the same moment. The rows it leaves behind then point at
-- nothing, which costs space and no message: ids decide.
create or replace function queen.index_some(
    p_queue integer, p_at timestamptz, p_partition bigint, p_base bigint, p_limit integer
) returns table (created_at timestamptz, partition_id bigint, base_offset bigint)
language plpgsql
set search_path = queen, pg_temp
-- In the order of the index, whatever the planner believes of a table that nobody has counted.
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    s record;
    v_hashes integer := 0;
begin
    for s in
        select g.created_at, g.partition_id, g.base_offset, g.hashes
          from segments g
         where g.queue_id = p_queue and g.created_at >= p_at
           and (g.created_at, g.partition_id, g.base_offset) > (p_at, p_partition, p_base)
         order by g.created_at, g.partition_id, g.base_offset
         limit p_limit
    loop
        insert into dedup_index (partition_id, hash, message_offset)
        select s.partition_id, substring(s.hashes from g * 8 + 1 for 8), s.base_offset + g
          from generate_series(0, length(s.hashes) / 8 - 1) g
            on conflict do nothing;
        created_at := s.created_at;
        partition_id := s.partition_id;
        base_offset := s.base_offset;
        v_hashes := v_hashes + coalesce(length(s.hashes), 0) / 8;
        exit when v_hashes >= p_limit;
    end loop;
    if created_at is not null then
        return next;
    end if;
end
$$;
