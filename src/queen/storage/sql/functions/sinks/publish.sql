-- Puts staged parts into the log, in the caller's transaction. The parts are locked already.
--
-- p_parts    in the order in which their messages follow each other
-- p_queues   the queues touched, sorted: their seals are taken shared before any time is read
-- p_ids      the partitions touched, sorted and distinct: locked in this order
-- p_known    offset up to which transaction ids have been compared; null: they need not be
-- p_forever  whether the whole index of the partition must be compared
-- p_off      whether the queue keeps no hashes
-- p_revision which configuration of its queue each partition was prepared for; null: any
-- p_known_at when the segment was written that ends at p_known; null: it is not compared
-- p_indexed  whether the messages of the partition go into the index; null: as p_forever
--
-- Answers as `queen.append` does, one row per partition in the order of p_ids. Unless all
-- outcomes are 0, nothing was done.
create or replace function queen.publish(
    p_parts bigint[],
    p_queues integer[],
    p_ids bigint[],
    p_known bigint[],
    p_forever boolean[],
    p_off boolean[],
    p_revision integer[] default null,
    p_indexed boolean[] default null,
    p_known_at timestamptz[] default null
) returns table (outcome smallint, head bigint, created_at timestamptz, unseen bytea)
language plpgsql
set search_path = queen, pg_temp
-- Changed below, and put back by these.
set enable_seqscan = on
set enable_hashjoin = on
set enable_mergejoin = on
as $$
#variable_conflict use_column
declare
    v_part bigint[];
    v_position integer[];
    v_count integer[];
    v_target integer[];
    v_before bigint[];
    v_totals bigint[];
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
    v_suspect boolean;
    v_suspects boolean := false;
    -- Messages whose hashes are compared at once: a value cannot be larger than 1 GB, and
    -- everybody else waits.
    v_many constant integer := 100000;
    i integer;
begin
    -- What goes where is known before anything is locked.
    select array_agg(w.part_id), array_agg(w.position), array_agg(w.messages),
           array_agg(w.target), array_agg(w.upto - w.messages)
      into v_part, v_position, v_count, v_target, v_before
      from (
        select c.part_id, c.position, c.messages, l.target::integer,
               sum(c.messages) over (partition by l.target order by o.n, c.position) as upto
          from unnest(p_parts) with ordinality o (part_id, n)
          join sink_pieces c on c.part_id = o.part_id
          join unnest(p_ids) with ordinality l (id, target) on l.id = c.partition_id
      ) w;
    select array_agg(coalesce(w.n, 0) order by l.target) into v_totals
      from generate_subscripts(p_ids, 1) l (target)
      left join (
        select target, sum(n) as n from unnest(v_target, v_count) u (target, n) group by target
      ) w on w.target = l.target;

    -- Each row is found by its key, whatever the planner believes of tables that nobody has
    -- counted yet.
    perform set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
            set_config('enable_mergejoin', 'off', true);

    -- In a statement of its own; see `queen.append`.
    perform pg_advisory_xact_lock_shared(7001, q) from unnest(p_queues) q;

    select array_agg(l.queue_id), array_agg(l.revision), array_agg(l.head), array_agg(l.head_at),
           array_agg(l.floor)
      into v_queue, v_revision, v_head, v_head_at, v_at
      from (
        select p.queue_id, q.revision, p.head, p.head_at,
               greatest(p.head_at, q.sealed_until) as floor
          from partitions p join queues q on q.id = p.queue_id
         where p.id = any (p_ids)
         order by p.id
           for no key update of p
      ) l;

    if coalesce(cardinality(v_head), 0) <> cardinality(p_ids) then
        return query select * from queen.outcomes_of_missing(p_ids);
        return;
    end if;

    if v_revision <> p_revision then
        v_outcome := queen.outcomes_by_revision(v_revision, p_revision);
        v_suspects := 3 = any (v_outcome);
    end if;

    for i in select s.i from generate_subscripts(p_ids, 1) s (i)
              where v_outcome[s.i] = 0 and p_known[s.i] is not null
                and (v_head[s.i] <> p_known[s.i] or v_head_at[s.i] <> p_known_at[s.i]
                     or p_forever[s.i])
    loop
        if not p_forever[i] then
            if v_head[i] - p_known[i] > v_many or not queen.is_still_true(
                    p_ids[i], p_known[i], p_known_at[i], v_head[i], v_head_at[i]) then
                v_outcome[i] := 4;
                v_suspects := true;
                continue;
            end if;
            select string_agg(s.hashes, '' order by s.base_offset) into v_others
              from segments s
             where s.partition_id = p_ids[i] and s.base_offset >= p_known[i];
            v_unseen[i] := v_others;
        end if;
        for v_new in
            select string_agg(w.hashes, '') from (
                select s.hashes, sum(c.messages) over (order by c.part_id, c.position) / v_many as n
                  from sink_pieces c
                  join segments s on s.partition_id = -c.part_id and s.base_offset = c.position
                 where c.part_id = any (p_parts) and c.partition_id = p_ids[i]
            ) w group by w.n
        loop
            if p_forever[i] then
                v_suspect := queen.is_indexed(p_ids[i], v_new, p_known[i]);
            else
                v_suspect := queen.share_a_hash(v_others, v_new);
            end if;
            if v_suspect then
                v_outcome[i] := 1;
                v_suspects := true;
                exit;
            end if;
        end loop;
    end loop;
    if v_suspects then
        return query select * from unnest(v_outcome, v_head, v_head_at, v_unseen);
        return;
    end if;

    v_now := clock_timestamp();
    for i in 1 .. cardinality(p_ids) loop
        v_at[i] := greatest(v_at[i], v_now);
    end loop;

    -- A value that lies outside its row stays where it is as long as nobody changes it.
    update segments s
       set partition_id = p_ids[w.target], base_offset = v_head[w.target] + w.before,
           end_offset = v_head[w.target] + w.before + w.n, created_at = v_at[w.target],
           queue_id = v_queue[w.target],
           hashes = case when p_off[w.target] then null else s.hashes end
      from unnest(v_part, v_position, v_count, v_target, v_before)
           w (part, position, n, target, before)
     where s.partition_id = -w.part and s.base_offset = w.position;

    update partitions p
       set head = w.head + w.n, head_at = w.at
      from unnest(p_ids, v_head, v_totals, v_at) w (id, head, n, at)
     where p.id = w.id and w.n > 0;

    p_indexed := coalesce(p_indexed, p_forever);
    if true = any (p_indexed) then
        insert into dedup_index (partition_id, hash, message_offset)
        select s.partition_id, substring(s.hashes from g * 8 + 1 for 8), s.base_offset + g
          from unnest(p_ids, v_head, p_indexed) l (id, head, forever)
          join segments s on s.partition_id = l.id and s.base_offset >= l.head
         cross join lateral generate_series(0, length(s.hashes) / 8 - 1) g
         where l.forever and s.hashes is not null;
    end if;

    delete from sink_pieces where part_id = any (p_parts);
    delete from sink_parts where id = any (p_parts);
    return query select * from unnest(v_outcome, v_head, v_at, v_unseen);
end
$$;
