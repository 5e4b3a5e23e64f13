-- The same without headers, for servers that know none: they count the columns.
create or replace function queen.take_staged(p_limit integer, p_bytes bigint)
returns table (
    id bigint,
    queue text,
    partition text,
    transaction_id text,
    trace_id text,
    producer_sub text,
    payload bytea,
    codec smallint
)
language sql
set search_path = queen, pg_temp
as $$
    select t.id, t.queue, t.partition, t.transaction_id, t.trace_id, t.producer_sub, t.payload,
           t.codec
      from queen.take_outbox(p_limit, p_bytes) t
$$;
