-- Appends segments to partitions, in one transaction with whatever else the caller does.
--
-- p_queues     the queues touched, sorted: their seals are taken shared before any time is read
-- p_ids        the partitions touched, sorted and distinct: locked in this order
-- p_totals     how many messages each of them gets
-- p_known      offset up to which the caller has compared transaction ids; null: no dedup
-- p_forever    whether the whole index of the partition must be compared
-- p_part …     one entry per segment; p_part points into p_ids, p_before counts the messages
--              that this call puts in front of it in the same partition
-- p_revision   which configuration of its queue each partition was prepared for; null: any
-- p_indexed    whether the messages of the partition go into the index; null: as p_forever
-- p_known_at   when the segment was written that ends at p_known; null: it is not compared
-- p_wait_ms    how long to wait for a lock before it all fails; null: as the session says
--
-- One row per partition, in the order of p_ids. Outcomes:
--   0 appended   `head` is the offset its first message got
--   1 suspect    somebody wrote an equal hash since p_known; nothing was appended there
--   2 missing    no such partition; then nothing was appended anywhere
--   3 stale      the queue has another configuration by now; nothing was appended there
--   4 behind     what the caller knows is no longer true, or others wrote more since than is
--                compared under a lock; nothing was appended there
-- `created_at` is when the messages were written; where nothing was appended, when the last one
-- was. `unseen` holds the hashes others wrote between p_known and `head`.
--
-- `queen.publish` takes the same steps over staged parts. What happens rarely is a function of
-- both. The seals, the locks and the comparison with what others wrote stand in each: every
-- append goes that way, and a call of a function costs it more than the lines that it would save.
create or replace function queen.append(
    p_queues integer[],
    p_ids bigint[],
    p_totals integer[],
    p_known bigint[],
    p_forever boolean[],
    p_part integer[],
    p_before integer[],
    p_count integer[],
    p_codec smallint[],
    p_hashes bytea[],
    p_body bytea[],
    p_revision integer[] default null,
    p_indexed boolean[] default null,
    p_known_at timestamptz[] default null,
    p_wait_ms integer default null
) returns table (outcome smallint, head bigint, created_at timestamptz, unseen bytea)
language plpgsql
set search_path = queen, pg_temp
-- By their indexes, however small a table was when the plan was made.
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_tid tid[];
    v_queue integer[];
    v_revision integer[];
    v_head bigint[];
    v_head_at timestamptz[];
    v_at timestamptz[];
    v_now timestamptz;
    v_outcome smallint[] := array_fill(0::smallint, array[cardinality(p_ids)]);
    v_unseen bytea[] := array_fill(null::bytea, array[cardinality(p_ids)]);
    v_new bytea;
    v_others bytea;
    v_refused boolean := false;
    i integer;
begin
    if p_wait_ms is not null then
        perform set_config('lock_timeout', p_wait_ms::text, true);
    end if;
    -- A seal is taken in a statement of its own: the next one then sees `sealed_until` and
    -- `revision` as whoever held it left them.
    perform pg_advisory_xact_lock_shared(7001, q) from unnest(p_queues) q;

    select array_agg(l.tid), array_agg(l.queue_id), array_agg(l.revision), array_agg(l.head),
           array_agg(l.head_at), array_agg(l.floor)
      into v_tid, v_queue, v_revision, v_head, v_head_at, v_at
      from (
        select p.tid, p.queue_id, q.revision, p.head, p.head_at,
               greatest(p.head_at, q.sealed_until) as floor
          from unnest(p_ids) with ordinality w (id, n)
         cross join lateral (
            -- The latest version first, and no other: to walk over those before it costs
            -- milliseconds while somebody keeps a transaction open. See `queen.hop`.
            select a.ctid as tid, a.queue_id, a.head, a.head_at from partitions a
             where a.id = w.id
             order by a.hops desc limit 1
               for no key update
         ) p
          join queues q on q.id = p.queue_id
         order by w.n
      ) l;

    if coalesce(cardinality(v_head), 0) <> cardinality(p_ids) then
        return query select * from queen.outcomes_of_missing(p_ids);
        return;
    end if;

    if v_revision <> p_revision then
        v_outcome := queen.outcomes_by_revision(v_revision, p_revision);
        v_refused := 3 = any (v_outcome);
    end if;

    for i in select s.i from generate_subscripts(p_ids, 1) s (i)
              where v_outcome[s.i] = 0
                and (v_head[s.i] <> p_known[s.i] or v_head_at[s.i] <> p_known_at[s.i]
                     or p_forever[s.i])
    loop
        select string_agg(w.hashes, '') into v_new
          from unnest(p_part, p_hashes) w (part, hashes) where w.part = i;
        if p_forever[i] then
            v_outcome[i] := queen.is_indexed(p_ids[i], v_new, p_known[i])::integer;
        elsif v_head[i] - p_known[i] > 100000 or not queen.is_still_true(
                p_ids[i], p_known[i], p_known_at[i], v_head[i], v_head_at[i]) then
            v_outcome[i] := 4;
        else
            select string_agg(s.hashes, '' order by s.base_offset) into v_others
              from segments s
             where s.partition_id = p_ids[i] and s.base_offset >= p_known[i];
            v_unseen[i] := v_others;
            v_outcome[i] := coalesce(queen.share_a_hash(v_others, v_new), false)::integer;
        end if;
        v_refused := v_refused or v_outcome[i] <> 0;
    end loop;

    v_now := clock_timestamp();
    for i in 1 .. cardinality(p_ids) loop
        v_at[i] := case v_outcome[i] when 0 then greatest(v_at[i], v_now) else v_head_at[i] end;
    end loop;

    insert into segments
        (partition_id, base_offset, end_offset, created_at, queue_id, codec, hashes, body)
    select p_ids[s.part], v_head[s.part] + s.before, v_head[s.part] + s.before + s.n,
           v_at[s.part], v_queue[s.part], s.codec, s.hashes, s.body
      from unnest(p_part, p_before, p_count, p_codec, p_hashes, p_body)
           as s (part, before, n, codec, hashes, body)
     where not v_refused or v_outcome[s.part] = 0;

    -- By their places, which the lock holds. To look for them once more would mean to walk over
    -- all their versions, and there are thousands while somebody keeps a transaction open.
    for i in 1 .. cardinality(p_ids) loop
        if v_outcome[i] = 0 then
            update partitions p
               set head = v_head[i] + p_totals[i], head_at = v_at[i],
                   hops = p.hops + queen.hop(p.ctid, p.page),
                   page = queen.page_of(p.ctid)
             where p.ctid = v_tid[i];
            if not found then
                raise exception 'partition % is not where it was locked', p_ids[i];
            end if;
        end if;
    end loop;

    p_indexed := coalesce(p_indexed, p_forever);
    if true = any (p_indexed) then
        insert into dedup_index (partition_id, hash, message_offset)
        select p_ids[s.part], substring(s.hashes from g * 8 + 1 for 8),
               v_head[s.part] + s.before + g
          from unnest(p_part, p_before, p_hashes) s (part, before, hashes)
         cross join lateral generate_series(0, length(s.hashes) / 8 - 1) g
         where p_indexed[s.part] and v_outcome[s.part] = 0;
    end if;

    return query select * from unnest(v_outcome, v_head, v_at, v_unseen);
end
$$;
