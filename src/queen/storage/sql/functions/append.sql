-- Appends segments to partitions, in one transaction with whatever else the caller does.
--
-- p_queues     the queues touched, sorted: their seals are taken shared before any time is read
-- p_ids        the partitions touched, sorted and distinct: locked in this order
-- p_totals     how many messages each of them gets
-- p_known      offset up to which the caller has compared transaction ids; null: no dedup
-- p_forever    whether the whole index of the partition must be compared
-- the rest     one entry per segment; p_part points into p_ids, p_before counts the messages
--              that this call puts in front of it in the same partition
--
-- One row per partition, in the order of p_ids. Outcomes:
--   0 appended   `head` is the offset its first message got
--   1 suspect    somebody wrote an equal hash since p_known; nothing was appended there
--   2 missing    no such partition; then nothing was appended anywhere
-- `unseen` holds the hashes others wrote between p_known and `head`.
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
    p_body bytea[]
) returns table (outcome smallint, head bigint, created_at timestamptz, unseen bytea)
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_queue integer[];
    v_head bigint[];
    v_at timestamptz[];
    v_now timestamptz;
    v_outcome smallint[] := array_fill(0::smallint, array[cardinality(p_ids)]);
    v_unseen bytea[] := array_fill(null::bytea, array[cardinality(p_ids)]);
    v_new bytea;
    v_others bytea;
    v_suspect boolean;
    v_suspects boolean := false;
    i integer;
begin
    -- A seal is taken in a statement of its own: the next one then sees `sealed_until` as the
    -- sealer left it.
    perform pg_advisory_xact_lock_shared(7001, q) from unnest(p_queues) q;

    select array_agg(l.queue_id), array_agg(l.head), array_agg(l.floor)
      into v_queue, v_head, v_at
      from (
        select p.queue_id, p.head, greatest(p.head_at, q.sealed_until) as floor
          from partitions p join queues q on q.id = p.queue_id
         where p.id = any (p_ids)
         order by p.id
           for no key update of p
      ) l;

    if coalesce(cardinality(v_head), 0) <> cardinality(p_ids) then
        return query
            select case when exists (select 1 from partitions p where p.id = w.id)
                        then 1 else 2 end::smallint, 0::bigint, null::timestamptz, null::bytea
              from unnest(p_ids) with ordinality w (id, n) order by w.n;
        return;
    end if;

    for i in select s.i from generate_subscripts(p_ids, 1) s (i)
              where v_head[s.i] > p_known[s.i] or p_forever[s.i]
    loop
        select string_agg(w.hashes, '') into v_new
          from unnest(p_part, p_hashes) w (part, hashes) where w.part = i;
        if p_forever[i] then
            v_suspect := queen.is_indexed(p_ids[i], v_new, p_known[i]);
        else
            select string_agg(s.hashes, '' order by s.base_offset) into v_others
              from segments s
             where s.partition_id = p_ids[i] and s.base_offset >= p_known[i];
            v_unseen[i] := v_others;
            v_suspect := queen.share_a_hash(v_others, v_new);
        end if;
        if v_suspect then
            v_outcome[i] := 1;
            v_suspects := true;
        end if;
    end loop;

    v_now := clock_timestamp();
    for i in 1 .. cardinality(p_ids) loop
        v_at[i] := greatest(v_at[i], v_now);
    end loop;

    insert into segments
        (partition_id, base_offset, end_offset, created_at, queue_id, codec, hashes, body)
    select p_ids[s.part], v_head[s.part] + s.before, v_head[s.part] + s.before + s.n,
           v_at[s.part], v_queue[s.part], s.codec, s.hashes, s.body
      from unnest(p_part, p_before, p_count, p_codec, p_hashes, p_body)
           as s (part, before, n, codec, hashes, body)
     where not v_suspects or v_outcome[s.part] = 0;

    update partitions p
       set head = w.head + w.n, head_at = w.at
      from unnest(p_ids, v_head, p_totals, v_at, v_outcome) as w (id, head, n, at, outcome)
     where p.id = w.id and w.outcome = 0;

    if true = any (p_forever) then
        insert into dedup_index (partition_id, hash, message_offset)
        select p_ids[s.part], substring(s.hashes from g * 8 + 1 for 8),
               v_head[s.part] + s.before + g
          from unnest(p_part, p_before, p_hashes) s (part, before, hashes)
         cross join lateral generate_series(0, length(s.hashes) / 8 - 1) g
         where p_forever[s.part] and v_outcome[s.part] = 0;
    end if;

    return query select * from unnest(v_outcome, v_head, v_at, v_unseen);
end
$$;
