-- The number of the page that a row lies on.
create or replace function queen.page_of(p_place tid) returns bigint
language sql immutable
as $$
    select substring(split_part(p_place::text, ',', 1) from 2)::bigint
$$;
