-- Runs when a transaction that has staged something commits: draws its number, once, and
-- wakes the relay. The trigger has pointed to it by this name since migration 0003.
--
-- It runs as the owner of the schema, because a deferred trigger runs after `queen.push` has
-- given up its rights. Nobody else may hang it on a table of their own.
create or replace function queen.take_place() returns trigger
language plpgsql security definer
set search_path = queen, pg_temp
as $$
begin
    if new.deliver_at is null then
        -- Asked first: a conflicting insert would draw a number for every row.
        if exists (select 1 from staged_commits c where c.transaction = new.transaction) then
            return null;
        end if;
        insert into staged_commits (transaction) values (new.transaction);
    end if;
    perform pg_notify('queen_staged', '');
    return null;
end
$$;

revoke execute on function queen.take_place() from public;
