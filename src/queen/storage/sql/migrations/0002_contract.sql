-- What the whole queue contract needs of the log.

-- The first offset that retention has left; everything before it is gone.
alter table queen.partitions
    add column tail bigint not null default 0,
    -- How often a message of it was erased: what a server has cached may no longer be true.
    add column erasures integer not null default 0;

-- A paused group is given nothing. `used_at` says, to within a minute, when it last asked:
-- a group that nobody uses any more must not hold back the clean-up for ever.
alter table queen.groups
    add column paused boolean not null default false,
    add column used_at timestamptz not null default clock_timestamp();

alter table queen.cursors
    -- After a failure nothing is given out before this instant.
    add column retry_at timestamptz,
    -- Messages before this offset come one at a time: one of them may kill its consumer.
    add column careful_until bigint;

-- Found by queue, newest first; the payload may be encrypted (`codec`, as in segments).
alter table queen.dead_letters
    add column queue_id integer,
    -- By name: dead letters outlive their group.
    add column consumer_group text,
    add column codec smallint not null default 0,
    add column producer_sub text;
update queen.dead_letters d set queue_id = p.queue_id, consumer_group = g.name
  from queen.partitions p, queen.groups g where p.id = d.partition_id and g.id = d.group_id;
delete from queen.dead_letters where queue_id is null;
alter table queen.dead_letters
    alter column queue_id set not null,
    alter column consumer_group set not null;
create index dead_letters_by_queue on queen.dead_letters (queue_id, failed_at desc, id desc);
create index dead_letters_by_time on queen.dead_letters (failed_at desc, id desc);

-- Its arguments have changed; one version of each function is enough.
drop function if exists queen.claim(
    bigint[], integer[], uuid[], bigint[], boolean[], integer[], integer[]);
