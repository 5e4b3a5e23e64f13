-- name: search_names :many
-- Whatever has a text in its name, the shortest names first; $2 is the namespaces that may be seen,
-- null for all, $3 how many of each kind, $4 how many partitions are looked at.
(select 'queue' as kind, q.name, q.name as queue
 from queen.queues q
 where strpos(lower(q.name), lower($1)) > 0 and ($2::text[] is null or q.namespace = any ($2))
 order by length(q.name), q.name limit $3)
union all
(select 'group', g.name, min(q.name)
 from queen.groups g join queen.queues q on q.id = g.queue_id
 where strpos(lower(g.name), lower($1)) > 0 and ($2::text[] is null or q.namespace = any ($2))
 group by g.name order by length(g.name), g.name limit $3)
union all
(select 'stream', s.name, ''
 from queen.streams s
 where strpos(lower(s.name), lower($1)) > 0 and ($2::text[] is null or s.namespace = any ($2))
 order by length(s.name), s.name limit $3)
union all
(select 'pipeline', p.name, ''
 from queen.pipelines p
 where strpos(lower(p.name), lower($1)) > 0 and ($2::text[] is null or p.namespace = any ($2))
 order by length(p.name), p.name limit $3)
union all
(select 'partition', p.name, q.name
 from (select queue_id, name from queen.partitions limit $4) p
 join queen.queues q on q.id = p.queue_id
 where strpos(lower(p.name), lower($1)) > 0 and ($2::text[] is null or q.namespace = any ($2))
 order by length(p.name), p.name, q.name limit $3)
