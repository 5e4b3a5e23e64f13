-- Whether two runs of eight-byte hashes have one in common; it may say yes in error, hardly ever.
--
-- When one of them is short, each of its hashes is looked for in the bytes of the other: taking a
-- million hashes apart takes a second, under the lock of a partition. A match that is not at a
-- multiple of eight is as likely as a collision, and as harmless: ids decide.
create or replace function queen.share_a_hash(p_one bytea, p_other bytea) returns boolean
language sql immutable parallel safe
as $$
    select case
        when length(p_one) <= 256 and length(p_other) > 65536 then exists (
            select 1 from generate_series(0, length(p_one) / 8 - 1) a
            where position(substring(p_one from a * 8 + 1 for 8) in p_other) > 0)
        when length(p_other) <= 256 and length(p_one) > 65536 then exists (
            select 1 from generate_series(0, length(p_other) / 8 - 1) b
            where position(substring(p_other from b * 8 + 1 for 8) in p_one) > 0)
        else exists (
            select substring(p_one from a * 8 + 1 for 8)
              from generate_series(0, length(p_one) / 8 - 1) a
            intersect
            select substring(p_other from b * 8 + 1 for 8)
              from generate_series(0, length(p_other) / 8 - 1) b)
        end
$$;
