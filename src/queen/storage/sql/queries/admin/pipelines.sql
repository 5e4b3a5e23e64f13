-- name: insert_pipeline :maybe again
-- Store a definition; nothing when there is one of that name.
insert into queen.pipelines (name, namespace, definition, fingerprint)
select $1, $2, $3, $4 where not exists (select 1 from queen.pipelines p where p.name = $1)
on conflict (name) do nothing
returning version

-- name: lock_pipeline :maybe
-- The definition of a pipeline, which nobody else changes until the transaction ends.
select namespace, definition, fingerprint, version from queen.pipelines where name = $1 for update

-- name: replace_pipeline :one once
-- Store another definition under the same name.
update queen.pipelines
   set namespace = $2, definition = $3, fingerprint = $4, version = version + 1,
       updated_at = clock_timestamp()
 where name = $1
returning version

-- name: pipelines_page :many
-- Pipelines by name, one or all, with how long ago each reported; `$2` some namespaces.
select p.name, p.namespace, p.definition, p.fingerprint, p.version, p.created_at, p.updated_at,
       p.run_id, p.started_at, p.reported_at, p.progress, p.runs,
       p.stop_run_id is not null and p.stop_run_id = p.run_id as is_stopping,
       (extract(epoch from clock_timestamp() - p.reported_at))::float8 as silent_s,
       count(*) over () as total
from queen.pipelines p
where ($1::text is null or p.name = $1) and ($2::text[] is null or p.namespace = any($2))
order by p.name
limit $3 offset $4

-- name: reporting_pipelines :many
-- The $1 pipelines that have reported last.
select p.name, p.progress,
       (extract(epoch from clock_timestamp() - p.reported_at))::float8 as silent_s
from queen.pipelines p
where p.reported_at is not null
order by p.reported_at desc
limit $1

-- name: report_pipeline :maybe again
-- Keep what a run says of itself; whether it is to stop.
update queen.pipelines
   set started_at = case when run_id = $2 then started_at else clock_timestamp() end,
       runs = runs + (run_id is distinct from $2)::integer,
       run_id = $2, progress = $3, reported_at = clock_timestamp()
 where name = $1
returning coalesce(stop_run_id = $2, false) as stop

-- name: stop_pipeline :maybe again
-- Ask the run that reported last to stop; what it last said.
update queen.pipelines set stop_run_id = run_id where name = $1
returning progress, (extract(epoch from clock_timestamp() - reported_at))::float8 as silent_s

-- name: delete_pipeline :maybe once
delete from queen.pipelines where name = $1 returning name
