-- Lets a run of a query publish, and none that opened before it.
--
-- A run that opens again keeps its number. `fenced` says that a later run has opened; `hidden`
-- that the query belongs to somebody who sees other namespaces.
create or replace function queen.open_sink(
    p_query text, p_run text, p_namespaces text[], p_once boolean
) returns table (epoch bigint, last_batch bigint, fenced boolean, hidden boolean)
language plpgsql
set search_path = queen, pg_temp
as $$
#variable_conflict use_column
declare
    v_sink sinks;
begin
    insert into sinks (query, run, namespaces, once)
    values (p_query, p_run, p_namespaces, p_once)
    on conflict do nothing;
    select * into v_sink from sinks s where s.query = p_query for update;
    if p_namespaces is not null and not coalesce(v_sink.namespaces <@ p_namespaces, false) then
        return query select 0::bigint, -1::bigint, false, true;
    elsif p_run = any (v_sink.past_runs) then
        return query select v_sink.epoch, v_sink.last_batch, true, false;
    else
        if v_sink.run <> p_run then
            update sinks s
               set run = p_run, epoch = s.epoch + 1, used_at = clock_timestamp(),
                   past_runs = (array[s.run] || s.past_runs)[1:100]
             where s.query = p_query returning * into v_sink;
        end if;
        return query select v_sink.epoch, v_sink.last_batch, false, false;
    end if;
end
$$;
