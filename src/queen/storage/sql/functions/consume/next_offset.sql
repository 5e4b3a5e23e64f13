-- The offset a group reads next in a partition: where its cursor stands or, without one,
-- where its subscription starts; never before the oldest message that is still there.
create or replace function queen.next_offset(
    p queen.partitions, p_committed bigint, p_starts_at timestamptz
) returns bigint
language sql stable
as $$
    select greatest(p.tail, case
        when p_committed is not null then p_committed
        when p_starts_at is null or p_starts_at = '-infinity' then p.tail
        when p.head_at < p_starts_at then p.head
        else queen.offset_at(p.id, p_starts_at)
    end)
$$;
