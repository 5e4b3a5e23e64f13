-- Says that the index of a queue is complete, unless its configuration has changed meanwhile.
-- With the seal: appends under way have added theirs, and later ones compare with all of it.
create or replace function queen.finish_index(p_queue integer, p_revision integer)
returns boolean
language plpgsql
set search_path = queen, pg_temp
as $$
begin
    perform 1 from queues q where q.id = p_queue for update;
    perform pg_advisory_xact_lock(7001, p_queue);
    update queues q set is_indexed = true, revision = q.revision + 1
     where q.id = p_queue and q.revision = p_revision;
    return found;
end
$$;
