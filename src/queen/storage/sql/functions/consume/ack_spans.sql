-- Commits whole leased spans: the common ack, where everything that was popped is done.
-- Entries come in order of (partition, group).
--
-- p_auto     acked by the server that has just read it: what failed before is forgotten, and
--            what it has not read is free again
-- p_wait_ms  how long to wait for a cursor before it all fails; 0 leaves out what is locked;
--            null: as the session says
--
-- One row per entry: whether it was that simple, and where the cursor stands. What was not
-- (the lease is another's, covers something else, or had failures) is left to a closer look.
-- A null says that somebody is at work on the cursor.
create or replace function queen.ack_spans(
    p_partition bigint[], p_group integer[], p_lease uuid[], p_end bigint[],
    p_auto boolean[] default null, p_wait_ms integer default null
) returns table (done boolean, committed bigint)
language plpgsql
set search_path = queen, pg_temp
-- By their indexes, however small a table was when the plan was made.
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    c cursors%rowtype;
    v record;
    v_tid tid;
begin
    if p_wait_ms > 0 then
        perform set_config('lock_timeout', p_wait_ms::text, true);
    end if;
    for i in 1 .. cardinality(p_partition) loop
        -- The latest version first, and no other, as in `queen.append`.
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
                done := null; committed := 0;
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
        done := c.lease_id = p_lease[i] and c.lease_until > clock_timestamp()
                and case when p_auto[i] then p_end[i] between c.committed and c.batch_end
                         else c.batch_end = p_end[i] and c.failed is null
                              and c.failures is null end;
        if done then
            c := queen.advance(c, p_end[i]);
            update cursors k
               set committed = c.committed, acked = c.acked, attempts = 0,
                   lease_id = null, lease_until = null, batch_start = null, batch_end = null,
                   failed = null, failures = null,
                   receipts = substring(substring(uuid_send(p_lease[i]) for 8)
                                        || int8send(c.committed) || k.receipts for 256),
                   hops = k.hops + queen.hop(k.ctid, k.page),
                   page = queen.page_of(k.ctid)
             where k.ctid = v_tid;
            if not found then
                raise exception 'cursor of % is not where it was locked', p_partition[i];
            end if;
        end if;
        done := coalesce(done, false);
        committed := coalesce(c.committed, 0);
        return next;
    end loop;
end
$$;
