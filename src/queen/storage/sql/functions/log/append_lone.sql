-- Appends one segment to one partition: what `queen.append` does for many, in a few statements where
-- nothing is in the way. Whatever is (a lock that is held, a head or a configuration that is not
-- what the caller took it for) is left to `queen.append`, with all its outcomes.
--
-- Nothing here waits for a lock, so it sets no limit to the waiting either: what is locked is found
-- so at once, and `queen.append` waits for it. As there, the seal and then the partition are locked
-- before the clock is read.
create or replace function queen.append_lone(
    p_queue integer,
    p_id bigint,
    p_count integer,
    p_known bigint,
    p_known_at timestamptz,
    p_codec smallint,
    p_hashes bytea,
    p_body bytea,
    p_revision integer,
    p_wait_ms integer,
    out outcome smallint,
    out head bigint,
    out created_at timestamptz,
    out unseen bytea
)
language plpgsql
set search_path = queen, pg_temp
as $$
#variable_conflict use_column
declare
    v_head bigint;
    v_at timestamptz;
    v_tid tid;
begin
    -- Not in the statement that looks at the partition: that one has to see what was sealed.
    if pg_try_advisory_xact_lock_shared(7001, p_queue) then
        -- The latest version first, and no other, as in `queen.append`.
        select a.ctid into v_tid from partitions a where a.id = p_id
         order by a.hops desc limit 1
           for no key update skip locked;
        if found then
            update partitions p
               set head = p.head + p_count,
                   head_at = greatest(p.head_at, q.sealed_until, clock_timestamp()),
                   hops = p.hops + queen.hop(p.ctid, p.page),
                   page = queen.page_of(p.ctid)
              from queues q
             where p.ctid = v_tid and p.queue_id = p_queue and q.id = p_queue
               and (p.head = p_known) is not false and (p.head_at = p_known_at) is not false
               and (q.revision = p_revision) is not false
            returning p.head - p_count, p.head_at into v_head, v_at;
            if found then
                insert into segments
                    (partition_id, base_offset, end_offset, created_at, queue_id, codec, hashes, body)
                values (p_id, v_head, v_head + p_count, v_at, p_queue, p_codec, p_hashes, p_body);
                outcome := 0;
                head := v_head;
                created_at := v_at;
                return;
            end if;
        end if;
    end if;
    select a.outcome, a.head, a.created_at, a.unseen into outcome, head, created_at, unseen
      from queen.append(
        array[p_queue], array[p_id], array[p_count], array[p_known], array[false], array[1],
        array[0], array[p_count], array[p_codec], array[p_hashes], array[p_body],
        array[p_revision], array[false], array[p_known_at], p_wait_ms) a;
end
$$;
