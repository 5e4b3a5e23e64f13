-- Commits whole leased spans of shared groups, as `queen.ack_spans` does it for ordered ones.
-- Entries come in order of (partition, group, start); a cursor is written once for all of its own.
--
-- p_start, p_end  what was leased
-- p_auto     acked by the server that has just read it: what it has not read is free again
-- p_wait_ms  how long to wait for a cursor before it all fails; 0 leaves out what is locked
--
-- One row per entry: whether it was that simple. A null says that somebody is at work on the
-- cursor.
create or replace function queen.ack_shared(
    p_partition bigint[], p_group integer[], p_lease uuid[], p_start bigint[], p_end bigint[],
    p_auto boolean, p_wait_ms integer default null
) returns setof boolean
language plpgsql
set search_path = queen, pg_temp
-- By their indexes, however small a table was when the plan was made.
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    s shared_spans%rowtype;
    v_count integer := cardinality(p_partition);
    v_handed bigint;
    v_locked boolean;
    v_done bigint := 0;
    v_receipts bytea := '';
begin
    if p_wait_ms > 0 then
        perform set_config('lock_timeout', p_wait_ms::text, true);
    end if;
    for i in 1 .. v_count loop
        if i = 1 or p_partition[i] <> p_partition[i - 1] or p_group[i] <> p_group[i - 1] then
            v_handed := null;
            if p_wait_ms = 0 then
                select k.handed into v_handed from cursors k
                 where k.partition_id = p_partition[i]
                   and k.group_id = p_group[i]
                 order by k.hops desc limit 1
                   for no key update skip locked;
            else
                select k.handed into v_handed from cursors k
                 where k.partition_id = p_partition[i]
                   and k.group_id = p_group[i]
                 order by k.hops desc limit 1
                   for no key update;
            end if;
            v_locked := found or not exists (
                select 1 from cursor_keys k
                 where k.partition_id = p_partition[i] and k.group_id = p_group[i]);
        end if;
        if not v_locked then
            return next null;
            continue;
        end if;
        s := null;
        if v_handed is not null then
            select w.* into s from shared_spans w
             where w.partition_id = p_partition[i] and w.group_id = p_group[i]
               and w.first_offset = p_start[i] and w.lease_id = p_lease[i]
               and w.due_at > clock_timestamp() and w.failed is null
               and case when p_auto then w.end_offset >= p_end[i] else w.end_offset = p_end[i] end;
        end if;
        if s.partition_id is not null then
            v_done := v_done + queen.left_in(s);
            if s.end_offset = p_end[i] then
                delete from shared_spans w
                 where w.partition_id = p_partition[i] and w.group_id = p_group[i]
                   and w.first_offset = p_start[i] and w.id = s.id;
            else
                s := queen.trim_span(s, p_end[i]);
                v_done := v_done - queen.left_in(s);
                update shared_spans w
                   set first_offset = s.first_offset, end_offset = s.end_offset, acked = s.acked,
                       lease_id = null, due_at = clock_timestamp(), attempts = s.attempts - 1,
                       is_alone = false
                 where w.partition_id = p_partition[i] and w.group_id = p_group[i]
                   and w.first_offset = p_start[i] and w.id = s.id;
            end if;
            v_receipts := substring(uuid_send(p_lease[i]) for 8) || int8send(p_end[i]) || v_receipts;
        end if;
        if v_receipts <> '' and (i = v_count or p_partition[i] <> p_partition[i + 1]
                                 or p_group[i] <> p_group[i + 1])
        then
            perform queen.advance_shared(p_partition[i], p_group[i], v_done, v_receipts);
            v_done := 0;
            v_receipts := '';
        end if;
        return next s.partition_id is not null;
    end loop;
end
$$;
