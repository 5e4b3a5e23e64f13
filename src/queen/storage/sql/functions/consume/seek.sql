-- Moves a group to a time or an offset, in one partition or in all of its queue; arguments
-- as for `queen.seek_targets`. Leases end: their holders' acks are refused from now on.
--
-- Every partition gets a cursor, also those the group has not read yet: a consumer that comes
-- to one at the same moment then waits here and finds it moved. Partitions that are made
-- later follow by `starts_at`. Rows are written in order of partition, so this takes its
-- locks like everybody else: group -> cursors by (partition, group). Before them comes the one
-- that keeps retention away; and a group that is moved is in use, so that what it is moved to
-- is not cleaned up as that of an abandoned one.
--
-- A group that reads by time has no cursors and gets none: `starts_at` is where it stands.
--
-- Returns no row when the group is gone; otherwise how many partitions are concerned, how
-- many messages are delivered again, and how many never. A dry run changes nothing.
create or replace function queen.seek(
    p_group integer, p_partition bigint, p_at timestamptz, p_offset bigint, p_dry boolean
) returns table (partitions bigint, again bigint, skipped bigint, new_offset bigint)
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_by_time boolean;
    v_ids bigint[];
    v_offsets bigint[];
    v_has_cursor boolean[];
    v_run record;
begin
    if p_dry then
        return query
            select count(*) filter (where t.has_cursor or t.old_offset <> t.new_offset),
                   coalesce(sum(t.again), 0)::bigint,
                   coalesce(sum(t.skipped), 0)::bigint,
                   max(t.new_offset)
              from queen.seek_targets(p_group, p_partition, p_at, p_offset) t
            having exists (select 1 from groups g where g.id = p_group);
        return;
    end if;

    perform queen.hold_retention(array(select g.queue_id from groups g where g.id = p_group));
    select g.reads_by_time into v_by_time from groups g where g.id = p_group for no key update;
    if not found then
        return;
    end if;
    select array_agg(t.partition_id), array_agg(t.new_offset), array_agg(t.has_cursor),
           count(*) filter (where t.has_cursor or t.old_offset <> t.new_offset),
           coalesce(sum(t.again), 0)::bigint, coalesce(sum(t.skipped), 0)::bigint,
           max(t.new_offset)
      into v_ids, v_offsets, v_has_cursor, partitions, again, skipped, new_offset
      from queen.seek_targets(p_group, p_partition, p_at, p_offset) t;
    if not v_by_time then
        -- In the order of partitions, run by run: cursors that are there are locked, others made.
        for v_run in
            select array_agg(w.id order by w.n) as ids, array_agg(w.start order by w.n) as starts,
                   w.has_cursor
              from (
                select t.*, t.n - row_number() over (partition by t.has_cursor order by t.n) as run
                  from unnest(v_ids, v_offsets, v_has_cursor)
                       with ordinality t (id, start, has_cursor, n)
              ) w
             group by w.has_cursor, w.run order by min(w.n)
        loop
            if v_run.has_cursor then
                perform 1 from cursors k
                  where k.partition_id = any (v_run.ids) and k.group_id = p_group
                  order by k.partition_id for no key update;
            else
                insert into cursors (partition_id, group_id, committed)
                select w.id, p_group, w.start from unnest(v_run.ids, v_run.starts) w (id, start);
            end if;
        end loop;
        -- In a statement that sees what was waited for.
        update cursors k
           set committed = w.start, epoch = k.epoch + 1,
               lease_id = null, lease_until = null, batch_start = null, batch_end = null,
               attempts = 0, acked = null, failed = null, failures = null, receipts = '',
               retry_at = null, careful_until = null, handed = null, in_flight = 0
          from unnest(v_ids, v_offsets) w (id, start)
         where k.partition_id = w.id and k.group_id = p_group;
    end if;
    -- Under the locks of the cursors, and in a statement that sees what they waited for.
    delete from shared_spans s using partitions p
     where p.queue_id = (select g.queue_id from groups g where g.id = p_group)
       and (p_partition is null or p.id = p_partition)
       and s.partition_id = p.id and s.group_id = p_group;
    if p_partition is not null then
        update groups g set used_at = clock_timestamp() where g.id = p_group;
    else
        update groups g
           set used_at = clock_timestamp(),
               starts_at = nullif(p_at, '-infinity'),
               moves = g.moves + v_by_time::integer,
               subscription_mode = case when v_by_time then 'time'
                                        when p_at = '-infinity' then 'all' else 'timestamp' end
         where g.id = p_group;
    end if;
    return next;
end
$$;
