-- Headers of messages that lie outside of segments: the text of a JSON object, encrypted where the
-- payload is (`codec`). An older server leaves them behind: what it takes out of the outbox or sets
-- aside arrives without them.
alter table queen.dead_letters add column headers bytea;
alter table queen.staged add column headers bytea;
alter table queen.staged_refused add column headers bytea;

-- The names of consumers, by the number with which the ids of their leases end. Older servers grant
-- leases without names.
create table queen.consumers (
    number bigint primary key,
    name text not null,
    seen_at timestamptz not null default clock_timestamp()
);
