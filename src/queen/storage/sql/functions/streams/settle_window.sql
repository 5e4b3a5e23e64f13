-- Decides about a leased window: done, to be tried again, or given up.
--
-- p_lease   null gives up a window whose grants are used up
-- Outcomes: done, retry, dead, already (this lease has decided before), lost
create or replace function queen.settle_window(
    p_group integer, p_window bigint, p_lease uuid, p_success boolean, p_error text,
    p_retry_limit integer, p_retry_delay_ms bigint
) returns text
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    w stream_work%rowtype;
    v_now timestamptz;
begin
    perform pg_advisory_xact_lock_shared(7003, p_group);
    select * into w from stream_work k
     where k.group_id = p_group and k.window_id = p_window for no key update;
    v_now := clock_timestamp();
    if w.group_id is null then
        return case when exists (
            select 1 from stream_dead d
             where d.group_id = p_group and d.window_id = p_window and d.settled_lease = p_lease
               and not p_success
        ) then 'already' else 'lost' end;
    end if;
    if w.settled_lease = p_lease then
        -- Who has said no cannot say yes afterwards, nor the other way round.
        return case when (w.state = 2) = p_success then 'already' else 'lost' end;
    end if;
    if p_lease is null then
        if w.state <> 1 or w.available_at > v_now or w.attempts <= p_retry_limit then
            return 'lost';
        end if;
    elsif w.lease_id is distinct from p_lease or w.available_at <= v_now then
        return 'lost';
    end if;

    if p_lease is not null and p_success then
        update stream_work k
           set state = 2, done_at = v_now, lease_id = null, settled_lease = p_lease
         where k.group_id = p_group and k.window_id = p_window;
        perform queen.free_next_window(p_group, w.key);
        return 'done';
    end if;
    if p_lease is null or w.attempts > p_retry_limit then
        insert into stream_dead (group_id, window_id, attempts, error, settled_lease)
        values (p_group, p_window, w.attempts,
                coalesce(p_error, w.error, 'The consumer did not come back'), p_lease)
            on conflict (group_id, window_id) do update
           set attempts = excluded.attempts, error = excluded.error,
               settled_lease = excluded.settled_lease, failed_at = v_now;
        delete from stream_work k where k.group_id = p_group and k.window_id = p_window;
        perform queen.free_next_window(p_group, w.key);
        return 'dead';
    end if;
    update stream_work k
       set lease_id = null, settled_lease = p_lease, error = p_error,
           available_at = v_now + least(p_retry_delay_ms * 2 ^ least(w.attempts - 1, 20), 300000)
                                  * interval '1 millisecond'
     where k.group_id = p_group and k.window_id = p_window;
    return 'retry';
end
$$;
