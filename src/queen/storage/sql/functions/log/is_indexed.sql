-- Whether one of the eight-byte hashes stands in a partition's index at or behind an offset.
create or replace function queen.is_indexed(p_partition bigint, p_hashes bytea, p_from bigint)
returns boolean
language sql stable
as $$
    select exists (
        select 1
          from generate_series(0, length(p_hashes) / 8 - 1) g
          join queen.dedup_index d
            on d.partition_id = p_partition
           and d.hash = substring(p_hashes from g * 8 + 1 for 8)
         where d.message_offset >= p_from
    )
$$;
