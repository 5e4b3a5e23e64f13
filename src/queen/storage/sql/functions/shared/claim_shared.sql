-- Leases spans of partitions to consumers of shared groups: arguments, order and outcomes are those
-- of `queen.claim`. What is due again comes first, then what nobody was given yet.
--
-- p_again   the same claim once more, because its first answer was lost
--
-- `handed` says up to where messages were given to somebody; behind it there may be more, for the
-- next pop. Outcome 8 says that the cursor is read in order: `queen.claim` knows what to do. A
-- group that was shared and is no longer gets what is left of its spans from here, one at a
-- time and in order, and only then goes on.
create or replace function queen.claim_shared(
    p_partition bigint[],
    p_group integer[],
    p_request integer[],
    p_lease uuid[],
    p_lease_ms bigint[],
    p_auto boolean[],
    p_budget integer[],
    p_retry_limit integer[],
    p_delay_ms bigint[],
    p_window_ms bigint[],
    p_expiry_ms bigint[],
    p_wait_ms integer default null,
    p_again boolean default false
) returns table (
    outcome smallint, committed bigint, batch_end bigint, head bigint, erasures integer,
    epoch bigint, attempt integer, seen bigint, acked bytea, failures bytea, wait_ms bigint,
    handed bigint
)
language plpgsql
set search_path = queen, pg_temp
-- By their indexes, however small a table was when the plan was made.
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    -- Messages of one cursor that may be with consumers, or wait for their next try, at a time.
    c_most constant bigint := 100000;
    c cursors%rowtype;
    v_before cursors%rowtype;
    s shared_spans%rowtype;
    t shared_spans%rowtype;
    v record;
    v_tid tid;
    p record;
    r integer;
    v_left integer[] := p_budget;
    v_paused integer[];
    v_shared integer[];
    v_now timestamptz;
    v_from bigint;
    v_due bigint;
    v_due_at timestamptz;
    v_stop bigint;
    v_gone bigint;
    v_first bigint;
    v_granted boolean;
    v_generation bigint := nullif(current_setting('queen.generation', true), '')::bigint;
begin
    if p_wait_ms > 0 then
        perform set_config('lock_timeout', p_wait_ms::text, true);
    end if;
    -- As in `queen.claim`: a lease that is lost is a redelivery, its epoch must not come again.
    if v_generation is null then
        update generations set last = last + 1 returning last into v_generation;
        perform set_config('queen.generation', v_generation::text, false);
    else
        perform set_config('synchronous_commit', 'off', true);
    end if;
    select array_agg(g.id) filter (where g.paused or g.reads_by_time),
           array_agg(g.id) filter (where g.shared)
      into v_paused, v_shared from groups g where g.id = any (p_group);

    for i in 1 .. cardinality(p_partition) loop
        r := p_request[i];
        outcome := 4; committed := 0; batch_end := 0; head := 0; erasures := 0; handed := 0;
        epoch := 0; attempt := 0; seen := 0; acked := null; failures := null; wait_ms := 0;
        if v_left[r] <= 0 then
            return next;
            continue;
        end if;
        if p_group[i] = any (v_paused) then
            outcome := 6;
            return next;
            continue;
        end if;

        if p_wait_ms = 0 then
            select k.ctid as tid, k as held into v from cursors k
             where k.partition_id = p_partition[i]
               and k.group_id = p_group[i]
             order by k.hops desc limit 1
               for no key update skip locked;
            if not found and exists (
                select 1 from cursor_keys k
                 where k.partition_id = p_partition[i] and k.group_id = p_group[i])
            then
                outcome := 7; wait_ms := 100;
                return next;
                continue;
            end if;
        else
            select k.ctid as tid, k as held into v from cursors k
             where k.partition_id = p_partition[i]
               and k.group_id = p_group[i]
             order by k.hops desc limit 1
               for no key update;
        end if;
        c := v.held;
        v_tid := v.tid;
        if c.partition_id is null then
            c := queen.open_cursor(p_partition[i], p_group[i]);
            v_tid := null;
        end if;
        select a.head, a.tail, a.head_at, a.erasures into p
          from partitions a where a.id = p_partition[i]
         order by a.hops desc limit 1;
        if p.head is null or c.committed is null then
            outcome := 3;
            return next;
            continue;
        end if;

        v_now := clock_timestamp();
        head := p.head;
        erasures := p.erasures;
        if c.handed is null and (p_group[i] = any (v_shared)) is not true then
            outcome := 8;
            return next;
            continue;
        end if;
        if c.handed is null then
            c := queen.share_cursor(c, v_now);
            v_tid := null;
        end if;
        if v_tid is null then
            select k.ctid into v_tid from cursors k
             where k.partition_id = p_partition[i] and k.group_id = p_group[i];
        end if;
        v_before := c;
        if p_again then
            select w.* into s from shared_spans w
             where w.partition_id = p_partition[i] and w.group_id = p_group[i]
               and w.lease_id = p_lease[r] and w.due_at > v_now;
            if found then
                outcome := 0; committed := s.first_offset; batch_end := s.end_offset;
                epoch := s.epoch; attempt := s.attempts; acked := s.acked;
                wait_ms := p_lease_ms[r]; handed := c.handed;
                v_left[r] := v_left[r] - (s.end_offset - s.first_offset);
                return next;
                continue;
            end if;
        end if;

        -- What retention has removed, and what is too old to be of use, is passed over, but for
        -- what somebody holds.
        v_from := p.tail;
        if p_expiry_ms[r] > 0 and c.committed < p.head then
            v_from := greatest(v_from, queen.offset_at(
                p_partition[i], v_now - p_expiry_ms[r] * interval '1 millisecond'));
        end if;
        if c.committed < v_from then
            with gone as (
                delete from shared_spans w
                 where w.partition_id = p_partition[i] and w.group_id = p_group[i]
                   and w.first_offset >= c.committed and w.end_offset <= v_from
                   and (w.lease_id is null or w.due_at <= v_now)
                returning queen.left_in(w) as n
            )
            select coalesce(sum(gone.n), 0) into v_gone from gone;
            c.in_flight := c.in_flight - v_gone;
            c.handed := greatest(c.handed, v_from);
            c.committed := queen.frontier(c);
        end if;

        v_granted := false;
        v_due_at := null;
        loop
            if p_group[i] = any (v_shared) then
                select w.* into s from shared_spans w
                 where w.partition_id = p_partition[i] and w.group_id = p_group[i]
                   and w.due_at <= v_now
                 order by w.due_at limit 1 for no key update;
                -- What comes again and again takes turns with what is fresh.
                if s.attempts > 1 and c.epoch % 2 = 1 and c.handed < p.head
                   and c.in_flight < c_most and p_delay_ms[r] = 0 and p_window_ms[r] = 0
                then
                    s := null;
                end if;
            else
                -- One at a time, the first of them: where one is out, all wait for it.
                select min(w.due_at) into v_due_at from shared_spans w
                 where w.partition_id = p_partition[i] and w.group_id = p_group[i]
                   and w.due_at > v_now and w.lease_id is not null;
                exit when v_due_at is not null;
                select w.* into s from shared_spans w
                 where w.partition_id = p_partition[i] and w.group_id = p_group[i]
                   and w.first_offset >= c.committed
                 order by w.first_offset limit 1 for no key update;
                v_due_at := case when s.due_at > v_now then s.due_at end;
                exit when v_due_at is not null;
            end if;
            exit when s.partition_id is null;
            v_first := s.first_offset;
            t := queen.trim_span(s, v_from);
            c.in_flight := c.in_flight - (queen.left_in(s) - queen.left_in(t));
            if t.first_offset >= t.end_offset then
                delete from shared_spans w
                 where w.partition_id = p_partition[i] and w.group_id = p_group[i]
                   and w.first_offset = v_first and w.id = s.id;
                c.committed := queen.frontier(c);
                s := null;
                continue;
            end if;
            -- As in `queen.claim`: what two holders went silent over comes one at a time, and only
            -- a message that was alone is ever given up.
            attempt := t.attempts;
            if t.attempts > p_retry_limit[r] and t.is_alone and not p_auto[r] then
                outcome := 5;
                committed := t.first_offset;
                update shared_spans w
                   set first_offset = t.first_offset, end_offset = t.end_offset, acked = t.acked,
                       failed = null, lease_id = null,
                       -- Should that fail, others are served before it is tried again.
                       due_at = v_now + interval '1 second'
                 where w.partition_id = p_partition[i] and w.group_id = p_group[i]
                   and w.first_offset = v_first and w.id = s.id;
                c.committed := queen.frontier(c);
                exit;
            end if;
            v_stop := least(t.end_offset, t.first_offset + case
                when t.attempts - t.told >= 2 then 1 else v_left[r] end);
            epoch := greatest(c.epoch + 1, v_generation << 32);
            update shared_spans w
               set first_offset = t.first_offset, end_offset = v_stop, lease_id = p_lease[r],
                   epoch = claim_shared.epoch, attempts = t.attempts + 1,
                   is_alone = v_stop = t.first_offset + 1, failed = null,
                   acked = queen.bits_within(t.acked, null, 0, v_stop - t.first_offset),
                   due_at = v_now + p_lease_ms[r] * interval '1 millisecond'
             where w.partition_id = p_partition[i] and w.group_id = p_group[i]
               and w.first_offset = v_first and w.id = s.id;
            if v_stop < t.end_offset then
                s := queen.trim_span(t, v_stop);
                insert into shared_spans (partition_id, group_id, first_offset, end_offset, due_at,
                                          attempts, told, acked)
                values (s.partition_id, s.group_id, s.first_offset, s.end_offset, s.due_at,
                        s.attempts, s.told, s.acked);
            end if;
            c.committed := queen.frontier(c);
            v_granted := true;
            committed := t.first_offset;
            batch_end := v_stop;
            attempt := t.attempts + 1;
            acked := queen.bits_within(t.acked, null, 0, v_stop - t.first_offset);
            exit;
        end loop;

        if not v_granted and outcome <> 5 and v_due_at is null and s.partition_id is null then
            if (p_group[i] = any (v_shared)) is not true then
                -- All of it is done: from here on it is read in order.
                c.committed := c.handed;
                c.handed := null;
                outcome := 8;
            elsif c.handed < p.head and c.in_flight < c_most then
                v_due := p.head;
                if p_window_ms[r] > 0 then
                    v_due_at := p.head_at + p_window_ms[r] * interval '1 millisecond';
                end if;
                if p_delay_ms[r] > 0
                   and p.head_at > v_now - p_delay_ms[r] * interval '1 millisecond'
                then
                    v_due := queen.offset_at(
                        p_partition[i], v_now - p_delay_ms[r] * interval '1 millisecond');
                    if v_due <= c.handed then
                        select greatest(v_due_at, p_delay_ms[r] * interval '1 millisecond'
                                        + case when g.codec < 16 then g.created_at
                                               else queen.stretch_time(
                                                   g.partition_id, g.base_offset, c.handed) end)
                          into v_due_at
                          from segments g
                         where g.partition_id = p_partition[i] and g.base_offset <= c.handed
                         order by g.base_offset desc limit 1;
                    end if;
                end if;
                if v_due_at is null or v_due_at <= v_now then
                    epoch := greatest(c.epoch + 1, v_generation << 32);
                    v_granted := true;
                    committed := c.handed;
                    batch_end := least(v_due, c.handed + v_left[r]);
                    attempt := 1;
                    insert into shared_spans (partition_id, group_id, first_offset, end_offset,
                                              lease_id, epoch, due_at, attempts, is_alone)
                    values (p_partition[i], p_group[i], committed, batch_end,
                            p_lease[r], epoch, v_now + p_lease_ms[r] * interval '1 millisecond',
                            1, batch_end = committed + 1);
                    c.in_flight := c.in_flight + (batch_end - committed);
                    c.handed := batch_end;
                end if;
            end if;
        end if;

        if v_granted then
            outcome := 0;
            c.epoch := epoch;
            seen := case when attempt > 1 then batch_end else 0 end;
            wait_ms := p_lease_ms[r];
            v_left[r] := v_left[r] - (batch_end - committed);
        elsif outcome not in (5, 8) then
            if p_group[i] = any (v_shared) then
                select least(v_due_at, min(w.due_at)) into v_due_at from shared_spans w
                 where w.partition_id = p_partition[i] and w.group_id = p_group[i];
            end if;
            committed := c.handed;
            outcome := case when v_due_at is null then 1 else 2 end;
            wait_ms := case when v_due_at is null then 0
                            else greatest(queen.ms_until(v_due_at, v_now), 1) end;
        end if;
        handed := c.handed;
        if v_granted or c is distinct from v_before then
            update cursors k
               set committed = c.committed, handed = c.handed, epoch = c.epoch,
                   in_flight = case when c.handed is null then 0 else c.in_flight end,
                   hops = k.hops + queen.hop(k.ctid, k.page),
                   page = queen.page_of(k.ctid)
             where k.ctid = v_tid;
            if not found then
                raise exception 'cursor of % is not where it was locked', p_partition[i];
            end if;
        end if;
        return next;
    end loop;
end
$$;
