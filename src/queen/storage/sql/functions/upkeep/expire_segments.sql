-- Removes the oldest segments of a queue that were written before an instant, and answers how
-- far it looked, so that the next round can go on from there.
--
-- p_before     nothing written at or after this is touched
-- p_after      where the last round ended: nothing at or before it is looked at again
-- p_live_since groups used since then are alive. Null removes whatever is old enough; otherwise
--              only what every living group, of the queue or of a stream over it, has done,
--              and nothing when there is none
-- p_limit      how many segments one round looks at
--
-- A partition loses a prefix of its segments, `tail` says where it begins now, and a cursor
-- that stood before that is passed over what is gone by the next claim. Partitions are locked
-- by id, as everywhere; an append to one of them waits for this round. Where it matters what
-- groups have done, whoever would move one back waits too (`queen.hold_retention`).
create or replace function queen.expire_segments(
    p_queue integer,
    p_before timestamptz,
    p_after timestamptz,
    p_live_since timestamptz,
    p_limit integer
) returns table (looked integer, looked_until timestamptz, segments bigint, messages bigint)
language plpgsql
set search_path = queen, pg_temp
as $$
#variable_conflict use_column
declare
    v_until timestamptz;
    v_looked integer;
    v_ids bigint[];
    v_ends bigint[];
    v_newest timestamptz;
    v_floor timestamptz;
begin
    if p_live_since is not null then
        -- In a statement of its own: the next one sees every move that is answered.
        perform pg_advisory_xact_lock(7004, p_queue);
        -- What a window of a stream holds that is not finished is not done.
        v_floor := queen.stream_floor(p_queue, p_live_since);
        p_before := least(p_before, v_floor);
    end if;
    -- Whole instants only: segments that were committed together share their time. A merged one
    -- is as old as the last of its messages.
    select max(w.at), count(*) into v_until, v_looked from (
        (select s.created_at as at from segments s
          where s.queue_id = p_queue and s.created_at < p_before and s.created_at > p_after
            and s.codec < 16
          order by s.created_at limit p_limit)
         union all
        (select m.last_at from merged_segments m
          where m.queue_id = p_queue and m.last_at < p_before and m.last_at > p_after
          order by m.last_at limit p_limit)
         order by at limit p_limit
    ) w;
    looked := v_looked; looked_until := v_until; segments := 0; messages := 0;
    if v_looked = 0 then
        return next;
        return;
    end if;

    select array_agg(w.partition_id), array_agg(w.upto) into v_ids, v_ends from (
        select o.partition_id, max(o.end_offset) as upto from (
            select s.partition_id, s.end_offset from segments s
             where s.queue_id = p_queue and s.created_at <= v_until and s.created_at > p_after
               and s.codec < 16
             union all
            select m.partition_id, m.end_offset from merged_segments m
             where m.queue_id = p_queue and m.last_at <= v_until and m.last_at > p_after
        ) o
         group by o.partition_id order by o.partition_id
    ) w;

    if p_live_since is not null then
        -- How far the slowest living group has got; a partition it has not opened counts from
        -- where its subscription starts.
        select array_agg(least(w.upto, f.done) order by w.n) into v_ends
          from unnest(v_ids, v_ends) with ordinality w (id, upto, n)
         cross join lateral (
            select coalesce(min(coalesce(c.committed, case when g.starts_at is null then 0
                                     else queen.offset_at(w.id, g.starts_at) end)),
                            case when v_floor is null then 0 else w.upto end) as done
              from groups g
              left join cursors c on c.partition_id = w.id and c.group_id = g.id
             where g.queue_id = p_queue and g.used_at >= p_live_since
         ) f;
    end if;

    perform 1 from partitions p where p.id = any (v_ids) order by p.id for no key update;
    with gone as (
        delete from segments s using unnest(v_ids, v_ends) w (id, upto)
         where s.partition_id = w.id and s.end_offset <= w.upto
        returning s.partition_id, s.base_offset, s.end_offset, s.hashes, s.created_at
    ), merged as (
        delete from merged_segments m using gone
         where m.partition_id = gone.partition_id and m.base_offset = gone.base_offset
        returning m.last_at
    ), forgotten as (
        delete from dedup_index d using gone, lateral generate_series(
                   0, coalesce(length(gone.hashes), 0) / 8 - 1) g
         where d.partition_id = gone.partition_id
           and d.hash = substring(gone.hashes from g * 8 + 1 for 8)
           and d.message_offset = gone.base_offset + g
    ), tails as (
        update partitions p set tail = greatest(p.tail, w.tail)
          from (select partition_id, max(end_offset) as tail from gone group by partition_id) w
         where p.id = w.partition_id
    )
    select count(*), coalesce(sum(end_offset - base_offset), 0),
           greatest(max(created_at), (select max(last_at) from merged))
      into segments, messages, v_newest from gone;
    update queues q set gone_until = v_newest where q.id = p_queue and q.gone_until < v_newest;
    return next;
end
$$;
