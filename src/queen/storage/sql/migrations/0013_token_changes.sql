-- Tokens are followed by transaction, not by time.
--
-- Servers ask for what has changed since they last asked. By a time that fails when the clock
-- goes back: a token that is revoked then has an older time than one that was seen. The numbers
-- of transactions only grow, and PostgreSQL says below which of them all are over: whoever has
-- read everything up to there need not look at it again.
alter table queen.api_tokens
    add column changed_in xid8 not null default pg_current_xact_id();
create index api_tokens_by_transaction on queen.api_tokens (changed_in);
drop index queen.api_tokens_by_change;

-- The trigger needs a function to point to; its body is in functions/note_token_change.sql.
create function queen.note_token_change() returns trigger language plpgsql as
$$ begin return new; end $$;

-- A trigger, so that a server of an older version notes it too. The use of a token is no change.
create trigger token_changes before update of changed_at, revoked_at, hash, role, namespaces,
        expires_at on queen.api_tokens
    for each row execute function queen.note_token_change();
