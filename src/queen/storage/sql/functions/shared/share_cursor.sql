-- Turns the cursor of a group that has read in order, locked by the caller, into that of a shared
-- one: what it holds, and what has failed in it, become spans. A lease that lives goes on as it is,
-- so nothing is handed to two at once; where it lies, nothing is lost.
create or replace function queen.share_cursor(c queen.cursors, p_now timestamptz)
returns queen.cursors
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_live boolean := c.lease_id is not null and c.lease_until > p_now;
    v_failures json := convert_from(c.failures, 'UTF8')::json;
    v_done bytea := queen.bits_within(c.acked, null, 0, coalesce(length(c.acked), 0) * 8);
    v_bits integer := coalesce(length(v_done), 0) * 8;
    v_end bigint := greatest(coalesce(c.batch_end, c.committed), coalesce(c.careful_until, 0));
    v_due timestamptz := greatest(c.retry_at, p_now);
    v_told integer;
    v_tries integer;
    v_at bigint;
    v_skipped boolean;
    s shared_spans%rowtype;
begin
    if v_failures is not null then
        select greatest(v_end, max(k::bigint) + 1) into v_end from json_object_keys(v_failures) k;
    end if;
    for i in reverse v_bits - 1 .. 0 loop
        if get_bit(v_done, i) = 1 then
            v_end := greatest(v_end, c.committed + i + 1);
            exit;
        end if;
    end loop;
    if v_live then
        insert into shared_spans (partition_id, group_id, first_offset, end_offset, lease_id, epoch,
                                  due_at, attempts, is_alone, acked, failed)
        values (c.partition_id, c.group_id, c.committed, c.batch_end, c.lease_id, c.epoch,
                c.lease_until,
                case when c.batch_end = c.committed + 1 then c.attempts else 1 end,
                c.batch_end = c.committed + 1,
                queen.bits_within(v_done, null, 0, c.batch_end - c.committed),
                queen.bits_within(c.failed, null, 0, c.batch_end - c.committed));
    end if;
    s.partition_id := c.partition_id;
    s.group_id := c.group_id;
    for v_offset in c.committed .. v_end loop
        v_at := v_offset - c.committed;
        v_told := coalesce((v_failures ->> v_offset::text)::integer, 0);
        -- A cursor counts for its first message. Of the others it is only known that they were
        -- in the last batch; none shall die early.
        v_tries := greatest(v_told, case
            when v_offset = c.committed and v_offset < c.batch_end and not v_live then c.attempts
            when v_offset < c.careful_until then v_told + 2
            when v_offset < c.batch_end and not v_live then v_told + 1
            else 0 end);
        -- Done, or in the lease that lives; what that has given back is free.
        v_skipped := v_offset = v_end or (v_at < v_bits and get_bit(v_done, v_at) = 1) or (
            v_live and v_offset < c.batch_end and (
                c.failed is null or v_at >= length(c.failed) * 8 or get_bit(c.failed, v_at) = 0));
        -- A run ends where a message was tried differently often, too.
        if s.first_offset is not null and (
            v_skipped or s.told <> v_told or s.attempts <> v_tries)
        then
            insert into shared_spans (partition_id, group_id, first_offset, end_offset, due_at,
                                      attempts, told, is_alone)
            values (s.partition_id, s.group_id, s.first_offset, v_offset, v_due,
                    s.attempts, s.told,
                    coalesce(s.first_offset = c.committed and c.batch_end = c.committed + 1, false));
            s.first_offset := null;
        end if;
        continue when v_skipped;
        if s.first_offset is null then
            s.first_offset := v_offset;
            s.told := v_told;
            s.attempts := v_tries;
        end if;
    end loop;
    c.handed := v_end;
    select coalesce(sum(queen.left_in(w)), 0) into c.in_flight from shared_spans w
     where w.partition_id = c.partition_id and w.group_id = c.group_id;
    c.committed := queen.frontier(c);
    update cursors k
       set committed = c.committed, handed = c.handed, in_flight = c.in_flight,
           lease_id = null, lease_until = null, batch_start = null, batch_end = null,
           attempts = 0, acked = null, failed = null, failures = null, retry_at = null,
           careful_until = null
     where k.partition_id = c.partition_id and k.group_id = c.group_id;
    return c;
end
$$;
