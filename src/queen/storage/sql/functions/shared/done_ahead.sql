-- How many messages behind the frontier of a cursor are done: what lies before them in a shared
-- group is with somebody, or waits for its next try. 0 for a group that reads in order.
create or replace function queen.done_ahead(c queen.cursors) returns bigint
language sql immutable
as $$
    select coalesce(greatest(c.handed - c.committed - c.in_flight, 0), 0)
$$;
