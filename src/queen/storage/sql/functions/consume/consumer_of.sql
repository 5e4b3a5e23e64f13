-- The name of the consumer that holds a lease; null when it has none. The id of a lease ends with
-- the number of its consumer: see service/holders.py.
create or replace function queen.consumer_of(p_lease uuid) returns text
language sql stable parallel safe
set search_path = queen, pg_temp
as $$
    select c.name from consumers c
     where c.number = ('x' || right(p_lease::text, 12))::bit(48)::bigint
$$;
