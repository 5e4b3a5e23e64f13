-- The first offset of a partition that was written at or after an instant.
--
-- Time never decreases along a partition, so this is a binary search over its segments by
-- primary key: a handful of index probes, however long the partition is. The instant may lie inside
-- of a merged one.
create or replace function queen.offset_at(p_partition bigint, p_at timestamptz) returns bigint
language plpgsql stable
set search_path = queen, pg_temp
as $$
declare
    v_low bigint;
    v_high bigint;
    v_found record;
    v_inside bigint;
begin
    select base_offset into v_low from segments
     where partition_id = p_partition order by base_offset limit 1;
    select head into v_high from partitions where id = p_partition;
    if v_low is null then
        return coalesce(v_high, 0);
    end if;
    -- Invariant: segments before v_low are too old, segments from v_high on are not.
    while v_low < v_high loop
        select base_offset, end_offset, created_at, codec into v_found from segments
         where partition_id = p_partition and base_offset <= (v_low + v_high) / 2
         order by base_offset desc limit 1;
        if v_found.created_at < p_at then
            v_low := v_found.end_offset;
            if v_found.codec >= 16 then
                v_inside := queen.stretch_start(p_partition, v_found.base_offset, p_at);
                if v_inside is not null then
                    return v_inside;
                end if;
            end if;
        else
            v_high := v_found.base_offset;
        end if;
    end loop;
    return v_low;
end
$$;
