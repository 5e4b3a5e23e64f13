-- What PostgreSQL says of itself. Only what any user may ask; texts of queries are left out.

-- name: pg_database :many
select current_database() as name, version() as version,
       pg_database_size(current_database()) as size_bytes,
       d.numbackends as connections, current_setting('max_connections')::integer as max_connections,
       d.xact_commit as commits, d.xact_rollback as rollbacks, d.deadlocks, d.temp_files,
       d.temp_bytes, d.tup_inserted as inserted, d.tup_updated as updated, d.tup_deleted as deleted,
       pg_postmaster_start_time() as started_at, d.stats_reset
from pg_stat_database d where d.datname = current_database()

-- name: pg_database_cache :many
select d.blks_hit as blocks_hit, d.blks_read as blocks_read,
       coalesce(round(100.0 * d.blks_hit / nullif(d.blks_hit + d.blks_read, 0), 2), 100)::float8
           as hit_ratio
from pg_stat_database d where d.datname = current_database()

-- name: pg_table_cache :many
select relname as table, heap_blks_hit as blocks_hit, heap_blks_read as blocks_read,
       coalesce(round(100.0 * heap_blks_hit / nullif(heap_blks_hit + heap_blks_read, 0), 2), 100)::float8
           as hit_ratio
from pg_statio_user_tables where schemaname = 'queen'
order by heap_blks_hit + heap_blks_read desc limit 50

-- name: pg_index_cache :many
select relname as table, indexrelname as index, idx_blks_hit as blocks_hit, idx_blks_read as blocks_read,
       coalesce(round(100.0 * idx_blks_hit / nullif(idx_blks_hit + idx_blks_read, 0), 2), 100)::float8
           as hit_ratio
from pg_statio_user_indexes where schemaname = 'queen'
order by idx_blks_hit + idx_blks_read desc limit 50

-- name: pg_cache_summary :many
select coalesce(round(100.0 * sum(heap_blks_hit) / nullif(sum(heap_blks_hit + heap_blks_read), 0), 2), 100)::float8
           as table_hit_ratio,
       coalesce(round(100.0 * sum(idx_blks_hit) / nullif(sum(idx_blks_hit + idx_blks_read), 0), 2), 100)::float8
           as index_hit_ratio
from pg_statio_user_tables where schemaname = 'queen'

-- name: pg_dead_tuples :many
select relname as table, n_live_tup as live, n_dead_tup as dead,
       coalesce(round(100.0 * n_dead_tup / nullif(n_live_tup + n_dead_tup, 0), 2), 0)::float8 as dead_ratio
from pg_stat_user_tables where schemaname = 'queen'
order by n_dead_tup desc, relname limit 50

-- name: pg_hot_updates :many
select relname as table, n_tup_upd as updates, n_tup_hot_upd as hot_updates,
       coalesce(round(100.0 * n_tup_hot_upd / nullif(n_tup_upd, 0), 2), 100)::float8 as hot_ratio
from pg_stat_user_tables where schemaname = 'queen'
order by n_tup_upd desc, relname limit 50

-- name: pg_active_queries :many
select pid, application_name, state, wait_event_type, wait_event,
       extract(epoch from clock_timestamp() - query_start)::float8 as duration_seconds,
       extract(epoch from clock_timestamp() - xact_start)::float8 as transaction_seconds
from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and state is distinct from 'idle'
  and backend_type = 'client backend'
order by query_start limit 50

-- name: oldest_snapshot_s :one
-- How long ago the transaction began whose snapshot keeps dead rows from being pruned for longest.
-- Of other roles' sessions only a member of pg_monitor is told. A vacuum holds nothing up.
select greatest(0, extract(epoch from clock_timestamp() - least(
           (select min(a.xact_start) from pg_stat_activity a
             where coalesce(a.backend_xmin, a.backend_xid) is not null
               and a.pid <> pg_backend_pid() and a.backend_type <> 'autovacuum worker'
               and coalesce(a.datname, current_database()) = current_database()),
           (select min(p.prepared) from pg_prepared_xacts p
             where p.database = current_database()))))::float8

-- name: pg_autovacuum :many
select relname as table, last_vacuum, last_autovacuum, last_analyze, last_autoanalyze,
       vacuum_count, autovacuum_count, analyze_count, autoanalyze_count
from pg_stat_user_tables where schemaname = 'queen'
order by relname limit 50

-- name: pg_buffer_config :many
select name, setting, unit from pg_settings
where name in ('shared_buffers', 'effective_cache_size', 'work_mem', 'maintenance_work_mem',
               'wal_buffers', 'max_wal_size', 'checkpoint_timeout', 'autovacuum')
order by name

-- name: pg_buffer_usage :many
-- How much of what was read came from memory. What lies in it only an extension knows.
select relname as table,
       heap_blks_hit + coalesce(idx_blks_hit, 0) + coalesce(toast_blks_hit, 0) as blocks_hit,
       heap_blks_read + coalesce(idx_blks_read, 0) + coalesce(toast_blks_read, 0) as blocks_read
from pg_statio_user_tables where schemaname = 'queen'
order by 2 desc limit 50

-- name: pg_table_sizes :many
select c.relname as table, pg_table_size(c.oid) as table_bytes, pg_indexes_size(c.oid) as index_bytes,
       pg_total_relation_size(c.oid) as total_bytes, greatest(c.reltuples, 0)::bigint as estimated_rows
from pg_class c
where c.relnamespace = 'queen'::regnamespace and c.relkind = 'r'
order by 4 desc limit 50

-- name: pg_health :one
-- What PostgreSQL counts of itself, in one row. A standby writes no WAL of its own.
select clock_timestamp() as at, current_setting('server_version') as version,
       pg_postmaster_start_time() as started_at, pg_is_in_recovery() as is_standby,
       pg_database_size(current_database()) as size_bytes,
       d.numbackends as connections, current_setting('max_connections')::integer as max_connections,
       case when not pg_is_in_recovery()
            then pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint end as wal_bytes,
       d.xact_commit as commits, d.xact_rollback as rollbacks, d.blks_hit as blocks_hit,
       d.blks_read as blocks_read, d.deadlocks, d.temp_bytes, d.stats_reset,
       exists (select 1 from pg_extension where extname = 'pg_stat_statements')
           and current_setting('shared_preload_libraries') ~ 'pg_stat_statements' as counts_statements
from pg_stat_database d where d.datname = current_database()

-- name: pg_health_tables :many
-- Tables with the most dead rows.
select relname as table, n_live_tup as live, n_dead_tup as dead,
       greatest(last_vacuum, last_autovacuum) as last_vacuum,
       pg_total_relation_size(relid) as bytes
from pg_stat_user_tables where schemaname = 'queen'
order by n_dead_tup desc, relname limit 50

-- name: pg_held_transactions :many
-- Transactions that began so many seconds ago. Of other roles' sessions only a member of
-- pg_monitor is told. A vacuum holds nothing up.
select a.pid, a.application_name, coalesce(a.state, a.backend_type) as state,
       extract(epoch from clock_timestamp() - a.xact_start)::float8 as seconds,
       extract(epoch from clock_timestamp() - coalesce(a.state_change, a.xact_start))::float8
           as state_seconds,
       a.wait_event_type || ': ' || a.wait_event as waits_for,
       coalesce(a.backend_xmin, a.backend_xid) is not null as holds_back_vacuum
from pg_stat_activity a
where coalesce(a.datname, current_database()) = current_database() and a.pid <> pg_backend_pid()
  and a.backend_type <> 'autovacuum worker'
  and a.xact_start < clock_timestamp() - make_interval(secs => $1)
order by a.xact_start limit $2

-- name: pg_slow_statements :many
select * from queen.slow_statements($1)

-- name: servers_now :many
-- Servers that have reported within the last half minute, with what they used last.
select s.id, s.hostname, s.port, s.worker, s.started_at, s.seen_at, w.lasts, w.requests,
       w.database_errors,
       greatest(1, least(60, extract(epoch from s.seen_at - w.bucket)))::float8 as minute_s
from queen.servers s
left join lateral (
    select n.bucket, n.lasts, n.requests, n.database_errors from queen.worker_samples n
    where n.server_id = s.id and n.bucket >= date_trunc('minute', clock_timestamp()) - interval '5 minutes'
    order by n.bucket desc limit 1
) w on true
where s.seen_at > clock_timestamp() - interval '30 seconds'
order by s.hostname, s.port, s.worker, s.id
