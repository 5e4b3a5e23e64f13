-- name: note_consumers :exec again
-- Write down the names of consumers, by their numbers.
insert into queen.consumers (number, name)
select w.number, w.name from unnest($1::bigint[], $2::text[]) w (number, name)
on conflict (number) do update set name = excluded.name, seen_at = clock_timestamp()

-- name: forget_consumers :one again
-- Drop names that nobody has used for so many days; return how many.
with gone as (
    delete from queen.consumers where number in (
        select number from queen.consumers
        where seen_at < clock_timestamp() - $1::integer * interval '1 day' limit $2)
    returning 1
)
select count(*) from gone
