-- The broker's own statements that take longest on average, if PostgreSQL counts them.
--
-- Whether there is such a view, and how its columns are called, is known only when it is asked.
-- What other applications send is not shown, nor are statements that could hold a value: in those
-- of ours every value is a parameter.
create or replace function queen.slow_statements(p_limit integer)
returns table (statement text, calls bigint, mean_ms float8, max_ms float8, total_ms float8)
language plpgsql stable
as $$
declare
    v_view text;
begin
    select format('%I.pg_stat_statements', n.nspname) into v_view
      from pg_extension e join pg_namespace n on n.oid = e.extnamespace
     where e.extname = 'pg_stat_statements';
    if v_view is null
       or position('pg_stat_statements' in current_setting('shared_preload_libraries')) = 0 then
        return;
    end if;
    return query execute format(
        'select left(regexp_replace(s.query, ''\s+'', '' '', ''g''), 300), s.calls,
                s.mean_exec_time, s.max_exec_time, s.total_exec_time
           from %s s join pg_roles r on r.oid = s.userid
          where s.dbid = (select d.oid from pg_database d where d.datname = current_database())
            and r.rolname = current_user and s.query ~ ''queen\.'' and s.query ~ ''\$1''
          order by s.mean_exec_time desc limit $1', v_view) using p_limit;
end
$$;
