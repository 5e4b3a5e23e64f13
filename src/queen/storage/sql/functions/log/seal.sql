-- Closes the past of a queue: returns an instant before which nothing will ever be written
-- to it again, and before which everything that was written is visible.
--
-- Call it in a transaction of its own: appends to the queue wait until that ends.
create or replace function queen.seal(p_queue integer) returns timestamptz
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_at timestamptz;
begin
    perform pg_advisory_xact_lock(7001, p_queue);
    update queues set sealed_until = greatest(sealed_until, clock_timestamp())
     where id = p_queue
    returning sealed_until into v_at;
    return v_at;
end
$$;
