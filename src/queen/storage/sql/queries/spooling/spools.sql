-- name: spool_position :maybe
-- How far a spool is drained; no row when nothing of it ever was.
select drained from queen.spools where id = $1

-- name: advance_spool :maybe once
-- Count records as done, if those before them were the last that are; no row otherwise.
insert into queen.spools as s (id, drained) values ($1, $3)
on conflict (id) do update set drained = excluded.drained, changed_at = now()
where s.drained = $2::bigint
returning drained

-- name: forget_spool :exec again
-- A spool is gone, with nothing in it.
with moves as (delete from queen.spool_moves where spool_id = $1)
delete from queen.spools where id = $1

-- name: spool_moves :many
-- The records of a spool that were moved to it, as ranges.
select first_seq, last_seq from queen.spool_moves where spool_id = $1 order by first_seq

-- name: note_spool_move :exec once
insert into queen.spool_moves (spool_id, first_seq, last_seq) values ($1, $2, $3)

-- name: forget_spool_moves :exec again
-- Ranges that are done as a whole.
delete from queen.spool_moves where spool_id = $1 and last_seq <= $2
