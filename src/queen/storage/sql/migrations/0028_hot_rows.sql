-- What is updated all the time has no unique index.
--
-- A version of a row that finds no room on its page goes to another and into every index. A unique
-- index then looks at all versions of the same key whether one of them lives, and while somebody
-- keeps a transaction open (a dump, a long query) there are tens of thousands, which nobody may
-- remove. An index that is not unique takes the new one without a look. So the keys of partitions
-- and cursors are kept in tables of their own, whose rows never change; a row is inserted when its
-- key can be, and its key goes with it.

create table queen.partition_keys (
    id bigint primary key,
    queue_id integer not null,
    name text not null,
    unique (queue_id, name)
);

create table queen.cursor_keys (
    partition_id bigint not null,
    group_id integer not null,
    primary key (partition_id, group_id)
);

lock table queen.partitions, queen.cursors in access exclusive mode;

insert into queen.partition_keys select id, queue_id, name from queen.partitions;
insert into queen.cursor_keys select partition_id, group_id from queen.cursors;

alter table queen.query_lanes
    drop constraint query_lanes_partition_id_fkey,
    add foreign key (partition_id) references queen.partition_keys on delete cascade;
alter table queen.entry_streams
    drop constraint entry_streams_partition_id_fkey,
    add foreign key (partition_id) references queen.partition_keys on delete cascade;
alter table queen.paced_partitions
    drop constraint paced_partitions_partition_id_fkey,
    add foreign key (partition_id) references queen.partition_keys on delete cascade;

alter table queen.partitions
    drop constraint partitions_pkey,
    drop constraint partitions_queue_id_name_key,
    -- How often the row went to another page, and on which one it was last updated.
    add column hops bigint not null default 0,
    add column page bigint;
create index partitions_by_id on queen.partitions (id, hops);
create index partitions_by_name on queen.partitions (queue_id, name);
-- As wide as the one by id. One that is much smaller would be searched for ids by a planner that can
-- skip the queue, and gives them in no order.
drop index queen.partitions_by_queue;
create index partitions_by_queue on queen.partitions (queue_id, id, hops);

alter table queen.cursors
    drop constraint cursors_pkey,
    add column hops bigint not null default 0,
    add column page bigint;
create index cursors_by_partition on queen.cursors (partition_id, group_id, hops);

-- Who publishes all tables (logical replication) must be told how a row is known without a key.
alter table queen.partitions replica identity full;
alter table queen.cursors replica identity full;

-- The triggers need functions to point to; their bodies are in functions/catalog.
create function queen.take_partition_key() returns trigger language plpgsql as
$$ begin return new; end $$;
create function queen.drop_partition_keys() returns trigger language plpgsql as
$$ begin return null; end $$;
create function queen.take_cursor_key() returns trigger language plpgsql as
$$ begin return new; end $$;
create function queen.drop_cursor_keys() returns trigger language plpgsql as
$$ begin return null; end $$;

create trigger partitions_take_keys before insert on queen.partitions
    for each row execute function queen.take_partition_key();
create trigger partitions_drop_keys after delete on queen.partitions
    referencing old table as gone
    for each statement execute function queen.drop_partition_keys();
create trigger cursors_take_keys before insert on queen.cursors
    for each row execute function queen.take_cursor_key();
create trigger cursors_drop_keys after delete on queen.cursors
    referencing old table as gone
    for each statement execute function queen.drop_cursor_keys();
