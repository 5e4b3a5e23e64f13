-- Queues that match a pattern are sealed at one instant, those that are made later too.

-- Nothing is ever written before this instant to a queue that is made from now on.
create table queen.horizon (
    id boolean primary key default true check (id),
    sealed_until timestamptz not null
);
insert into queen.horizon (sealed_until) values ('-infinity');

-- The trigger needs a function to point to; its body is in functions/read/begin_sealed.sql.
create function queen.begin_sealed() returns trigger language plpgsql as
$$ begin return new; end $$;

-- A trigger, so that a queue that a server of an older version makes is sealed too.
create trigger queues_begin_sealed before insert on queen.queues
    for each row execute function queen.begin_sealed();
