-- name: pass_time :many
select queue_id from queen.pass_time($1, $2) queue_id
