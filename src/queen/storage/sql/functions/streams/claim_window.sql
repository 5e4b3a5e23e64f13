-- Leases the oldest window that a group may have now.
--
-- The lease names group and window, so that whoever shows it need not be looked up: eight
-- digits of the group, twelve of the window, twelve (p_nonce) that nobody can guess.
--
-- One row. Outcomes:
--   0 leased       everything about the window
--   1 nothing      wait_ms until something may be ready, or null
--   2 exhausted    the window was granted as often as it may be; the caller buries it
--   3 paused
--   4 no such group
create or replace function queen.claim_window(
    p_group integer, p_nonce text, p_consumer text, p_lease_ms bigint, p_retry_limit integer
) returns table (
    outcome smallint, window_id bigint, lease_id uuid, lease_until timestamptz,
    attempt integer, wait_ms bigint, key text, starts_at timestamptz, ends_at timestamptz,
    partitions bigint[], from_offsets bigint[], to_offsets bigint[], messages bigint, bytes bigint
)
language plpgsql
set search_path = queen, pg_temp
as $$
#variable_conflict use_column
declare
    g record;
    w record;
    v_now timestamptz;
    v_next timestamptz;
begin
    -- A lost grant is a redelivery and its holder is refused.
    perform set_config('synchronous_commit', 'off', true);
    select s.paused, s.used_at, s.stream_id into g
      from stream_groups s where s.id = p_group;
    if g.stream_id is null then
        outcome := 4;
        return next;
        return;
    end if;
    if g.paused then
        perform queen.use_stream_group(p_group, g.used_at);
        outcome := 3;
        return next;
        return;
    end if;

    for round in 1 .. 20 loop
        v_now := clock_timestamp();
        select k.window_id, k.attempts into w from stream_work k
         where k.group_id = p_group and k.state = 1 and k.available_at <= v_now
         order by k.window_id limit 1
           for no key update skip locked;
        if found then
            window_id := w.window_id;
            attempt := w.attempts + 1;
            if w.attempts > p_retry_limit then
                outcome := 2;
                return next;
                return;
            end if;
            outcome := 0;
            lease_id := (lpad(to_hex(p_group), 8, '0') || lpad(to_hex(w.window_id), 12, '0')
                         || p_nonce)::uuid;
            lease_until := v_now + p_lease_ms * interval '1 millisecond';
            update stream_work k
               set lease_id = claim_window.lease_id, available_at = claim_window.lease_until,
                   attempts = claim_window.attempt, consumer = p_consumer, granted_at = v_now
             where k.group_id = p_group and k.window_id = w.window_id;
            select n.key, n.starts_at, n.ends_at, n.partitions, n.from_offsets, n.to_offsets,
                   n.messages, n.bytes
              into key, starts_at, ends_at, partitions, from_offsets, to_offsets, messages, bytes
              from stream_windows n where n.stream_id = g.stream_id and n.id = w.window_id;
            perform queen.use_stream_group(p_group, g.used_at);
            return next;
            return;
        end if;
        -- Acks wait for who takes windows over: not when there are none.
        exit when not exists (
            select 1 from stream_groups s join stream_windows n on n.stream_id = s.stream_id
             where s.id = p_group and n.id > s.frontier);
        exit when queen.fill_work(p_group, 200) = 0;
    end loop;

    perform queen.use_stream_group(p_group, g.used_at);
    outcome := 1;
    select min(k.available_at) into v_next from stream_work k
     where k.group_id = p_group and k.state = 1;
    v_now := clock_timestamp();
    wait_ms := queen.ms_until(greatest(v_next, v_now), v_now);
    return next;
end
$$;
