-- Up to where everything is done in a cursor of a shared group: to its first span. What lies
-- before `committed` is not looked at, so spans that are gone and not vacuumed yet cost nothing.
create or replace function queen.frontier(c queen.cursors) returns bigint
language sql stable
as $$
    select coalesce((
        select s.first_offset from queen.shared_spans s
         where s.partition_id = c.partition_id and s.group_id = c.group_id
           and s.first_offset >= c.committed
         order by s.first_offset limit 1), c.handed)
$$;
