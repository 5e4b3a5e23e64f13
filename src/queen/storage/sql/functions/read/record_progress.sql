-- Notes that a group has read everything of some queues before an instant, and answers where it
-- stands in each. Whoever moved it meanwhile has the last word: then only the fact that it is in
-- use is noted. A group of consumers, which has cursors, is left alone and not answered; nor is
-- a queue that is gone.
--
-- It is asked for every few seconds for as long as a query runs, so a number for a new group is
-- drawn only when there is none. Queues come in order of their ids, and are locked in that order.
create or replace function queen.record_progress(
    p_queues integer[], p_name text, p_done_until timestamptz, p_moves integer[]
) returns table (queue_id integer, done_until timestamptz, moves integer, paused boolean)
language plpgsql
set search_path = queen, pg_temp
as $$
#variable_conflict use_column
begin
    for i in 1 .. cardinality(p_queues) loop
        return query
            update groups g
               set starts_at = case when g.moves = p_moves[i] then p_done_until
                                    else g.starts_at end,
                   used_at = clock_timestamp()
             where g.queue_id = p_queues[i] and g.name = p_name and g.reads_by_time
            returning g.queue_id, g.starts_at, g.moves, g.paused;
        if not found and not exists (
            select 1 from groups g where g.queue_id = p_queues[i] and g.name = p_name)
        then
            return query
                insert into groups as g
                    (queue_id, name, subscription_mode, starts_at, reads_by_time, moves)
                select q.id, p_name, 'time', p_done_until, true, p_moves[i]
                  from queues q where q.id = p_queues[i]
                    on conflict (queue_id, name) do update
                   set starts_at = case when g.moves = excluded.moves then excluded.starts_at
                                        else g.starts_at end,
                       used_at = clock_timestamp()
                 where g.reads_by_time
                returning g.queue_id, g.starts_at, g.moves, g.paused;
        end if;
    end loop;
end
$$;
