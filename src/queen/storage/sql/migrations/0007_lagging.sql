-- What the pages about consumer groups read, counted together with the other statistics.

alter table queen.group_stats
    -- In how many partitions the group has a cursor.
    add column members bigint not null default 0;

-- Where groups have had something to read for longest: the worst partitions of all, and the
-- worst of each namespace, so that who may see one namespace only finds its own among them.
-- Nothing is referenced, so the count and the deletion of a group do not wait for each other: a row
-- whose group or partition is gone is not shown, and goes with the next count.
create table queen.lagging_partitions (
    group_id integer not null,
    partition_id bigint not null,
    pending bigint not null,
    oldest_unread_at timestamptz not null,
    primary key (group_id, partition_id)
) with (fillfactor = 70);

-- These answer with other columns from now on, which `create or replace` cannot do.
drop function if exists queen.lanes(bigint, bigint, timestamptz);
drop function if exists queen.drop_idle_partitions(bigint, timestamptz, integer);
