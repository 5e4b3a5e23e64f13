-- Limits of a queue over all of its groups: only queues with such an option have rows.

-- A token bucket for each queue, as `paced_groups` has it for each group. Whoever claims for a group
-- of such a queue locks this row before that of the group.
create table queen.paced_queues (
    queue_id integer primary key references queen.queues on delete cascade,
    tokens double precision,
    filled_at timestamptz not null default clock_timestamp()
) with (fillfactor = 50);
