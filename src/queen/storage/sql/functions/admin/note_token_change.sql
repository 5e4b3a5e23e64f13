-- Notes in which transaction a token was changed, for the servers that follow.
create or replace function queen.note_token_change() returns trigger
language plpgsql
as $$
begin
    new.changed_in := pg_current_xact_id();
    return new;
end
$$;
