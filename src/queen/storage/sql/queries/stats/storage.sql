-- What is stored, what comes in, and whether any of it ever goes.

-- name: storage_numbers :one
-- $1: since when what comes in is looked at. The folder is known to those who may ask for it, and
-- is of use only to a server on the same machine.
select pg_database_size(current_database()) as database_bytes,
       (select setting from pg_settings where name = 'data_directory') as data_directory,
       coalesce(host(inet_server_addr()) in ('127.0.0.1', '::1'), true) as is_local,
       pg_backend_pid() as pid, clock_timestamp() as now,
       (select min(bucket) from queen.activity where bucket >= $1) as counted_since

-- name: queues_that_keep :many
-- Queues that keep every message until somebody says otherwise, the largest first.
select q.name, coalesce(t.retained, 0) as messages, coalesce(t.stored_bytes, 0) as stored_bytes,
       coalesce(a.bytes, 0)::bigint as pushed_bytes, count(*) over () as total,
       sum(coalesce(t.stored_bytes, 0)) over ()::bigint as all_stored_bytes,
       sum(coalesce(a.bytes, 0)) over ()::bigint as all_pushed_bytes
from queen.queues q
left join queen.queue_stats t on t.queue_id = q.id
left join (
    select queue_id, sum(push_bytes) as bytes from queen.activity
    where bucket >= $1 group by queue_id
) a on a.queue_id = q.id
where not (
    (q.options -> 'retentionEnabled' is not distinct from 'true'
     and (coalesce(q.options -> 'retentionSeconds', '0') > '0'
          or coalesce(q.options -> 'completedRetentionSeconds', '0') > '0'))
    or coalesce(q.options -> 'maxWaitTimeSeconds', '0') > '0'
    or coalesce(q.options -> 'ttl', '0') > '0')
order by stored_bytes desc, q.name limit $2

-- name: doctor_settings :many
-- Settings that Queen's promises and speed rest on.
select name, setting, unit, source from pg_settings
where name in ('fsync', 'full_page_writes', 'synchronous_commit', 'max_connections', 'autovacuum',
               'shared_buffers', 'max_wal_size', 'wal_level', 'server_version',
               'idle_in_transaction_session_timeout', 'data_checksums')

-- name: doctor_state :one
select (select count(*) from pg_stat_activity where backend_type = 'client backend') as connections,
       (select count(*) from pg_stat_activity a
         where a.datname = current_database() and a.state like 'idle in transaction%'
           and clock_timestamp() - a.state_change > interval '1 minute') as idle_in_transaction,
       (select count(*) from pg_prepared_xacts where database = current_database()) as prepared,
       (select max(name) from queen.schema_files where name ~ '^\d{4}_') as schema_version,
       clock_timestamp() as now
