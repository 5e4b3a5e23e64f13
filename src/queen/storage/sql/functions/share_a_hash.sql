-- Whether two runs of eight-byte hashes have one in common.
create or replace function queen.share_a_hash(p_one bytea, p_other bytea) returns boolean
language sql immutable parallel safe
as $$
    select exists (
        select substring(p_one from a * 8 + 1 for 8) from generate_series(0, length(p_one) / 8 - 1) a
        intersect
        select substring(p_other from b * 8 + 1 for 8) from generate_series(0, length(p_other) / 8 - 1) b
    )
$$;
