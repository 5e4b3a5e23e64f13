-- How many milliseconds lie between now and a later instant, rounded up.
create or replace function queen.ms_until(p_then timestamptz, p_now timestamptz) returns bigint
language sql immutable
as $$
    select ceil(extract(epoch from p_then - p_now) * 1000)::bigint
$$;
