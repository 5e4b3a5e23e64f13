-- Appends one segment to one partition, as `queen.append_lone` does, and leases it in the same
-- transaction to a consumer that waits for it.
--
-- p_group     whose consumer waits; it has done, or holds, everything before this segment
-- p_lease     the lease it gets, p_lease_ms long, of p_batch messages at most
-- p_done      the lease it holds, of which everything is done: it is committed here; or null
--
-- `epoch` is null when nothing was leased: somebody is at work on the cursor, it is not where the
-- caller took it for, or the append was refused. Then nothing of `p_done` was done either, and
-- `queen.claim` knows what to do. What is asked of the cursor is what the statements `claim_lone`
-- and `ack_lone` ask; here the lease reaches the disk, because the append does.
create or replace function queen.append_and_lease(
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
    p_group integer,
    p_lease uuid,
    p_lease_ms bigint,
    p_batch integer,
    p_done uuid,
    out outcome smallint,
    out head bigint,
    out created_at timestamptz,
    out unseen bytea,
    out epoch bigint
)
language plpgsql
set search_path = queen, pg_temp
as $$
#variable_conflict use_column
declare
    v_head bigint;
    v_tid tid;
    v_generation bigint := nullif(current_setting('queen.generation', true), '')::bigint;
begin
    select a.outcome, a.head, a.created_at, a.unseen into outcome, v_head, created_at, unseen
      from queen.append_lone(p_queue, p_id, p_count, p_known, p_known_at, p_codec, p_hashes,
                             p_body, p_revision, p_wait_ms) a;
    head := v_head;
    if outcome <> 0 then
        return;
    end if;
    if v_generation is null then
        -- As in `queen.claim`.
        update generations set last = last + 1 returning last into v_generation;
        perform set_config('queen.generation', v_generation::text, false);
    end if;
    -- The latest version first, and no other, as in `queen.append`.
    select k.ctid into v_tid from cursors k
     where k.partition_id = p_id and k.group_id = p_group
     order by k.hops desc limit 1
       for no key update skip locked;
    update cursors k
       set epoch = greatest(k.epoch + 1, v_generation << 32), attempts = 1,
           committed = v_head, batch_start = v_head,
           batch_end = v_head + least(p_count, p_batch),
           lease_id = p_lease,
           lease_until = clock_timestamp() + p_lease_ms * interval '1 millisecond',
           receipts = case when p_done is null then k.receipts
                           else substring(substring(uuid_send(p_done) for 8) || int8send(v_head)
                                          || k.receipts for 256) end,
           hops = k.hops + queen.hop(k.ctid, k.page), page = queen.page_of(k.ctid)
      from groups g
     where k.ctid = v_tid and g.id = p_group
       and not g.paused and not g.reads_by_time and not g.shared and k.handed is null
       and k.acked is null and k.failed is null and k.failures is null
       and k.retry_at is null and k.careful_until is null
       and case when p_done is null
                then k.lease_id is null and k.batch_end is null and k.attempts = 0
                     and k.committed = v_head
                else k.lease_id = p_done and k.batch_end = v_head
                     and k.lease_until > clock_timestamp() end
    returning k.epoch into epoch;
end
$$;
