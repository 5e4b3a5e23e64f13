-- Numbers by which a server notices that what it remembers is old.

alter table queen.queues
    -- Grows with every change of the configuration. An append that was prepared for another
    -- one is refused, so no server acts on options that are no longer true.
    add column revision integer not null default 0,
    -- Whether the index of `dedup: forever` covers everything that the queue holds.
    add column is_indexed boolean not null default false;

update queen.queues set is_indexed = true where options ->> 'dedup' = 'forever';

-- The last generation that was given to a connection; see `queen.claim`.
create table queen.generations (
    id boolean primary key default true check (id),
    last bigint not null
);
insert into queen.generations (last) values (0);
