-- Closes the past of a queue up to an instant; false when appends are under way and the caller
-- does not want to wait for them.
--
-- Call it in a transaction of its own, as `queen.seal`.
create or replace function queen.seal_until(p_queue integer, p_at timestamptz, p_wait boolean)
returns boolean
language plpgsql
set search_path = queen, pg_temp
as $$
begin
    if exists (select 1 from queues where id = p_queue and sealed_until >= p_at) then
        return true;
    end if;
    if p_wait then
        -- Appends wait behind this: one that hangs must not stop the others for long.
        perform set_config('lock_timeout', '500ms', true);
        perform pg_advisory_xact_lock(7001, p_queue);
    elsif not pg_try_advisory_xact_lock(7001, p_queue) then
        return false;
    end if;
    update queues set sealed_until = greatest(sealed_until, p_at) where id = p_queue;
    return true;
end
$$;
