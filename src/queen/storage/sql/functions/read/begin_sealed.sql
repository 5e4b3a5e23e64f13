-- Seals a new queue up to the horizon: whoever has read a pattern of queues up to there has
-- not seen this one.
--
-- Seal 0 is that of queues yet to be made. It is held until the queue can be seen, and taken in
-- a statement of its own: the next one then sees the horizon as whoever held it left it.
create or replace function queen.begin_sealed() returns trigger
language plpgsql
set search_path = queen, pg_temp
as $$
begin
    perform pg_advisory_xact_lock_shared(7001, 0);
    new.sealed_until := greatest(new.sealed_until, (select h.sealed_until from horizon h));
    return new;
end
$$;
