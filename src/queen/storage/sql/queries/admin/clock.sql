-- name: pass_time :many once
select queue_id from queen.pass_time($1, $2) queue_id
