-- Takes messages that are due out of staging; the caller appends them in this transaction.
-- The arguments are those of `due_staged`.
--
-- Rows that somebody cancels at this moment are left to them.
create or replace function queen.take_outbox(p_limit integer, p_bytes bigint)
returns table (
    id bigint,
    queue text,
    partition text,
    transaction_id text,
    trace_id text,
    producer_sub text,
    payload bytea,
    codec smallint,
    headers bytea
)
language plpgsql
set search_path = queen, pg_temp
set enable_seqscan = off
-- The planner takes an array for ten rows, and would compare a thousand with a thousand.
set enable_nestloop = off
as $$
declare
    v_ids bigint[];
    v_free bigint[];
    v_seq bigint;
begin
    select d.ids, d.last_seq into v_ids, v_seq from queen.due_staged(p_limit, p_bytes) d;
    select array_agg(f.id) into v_free
      from (select s.id from staged s where s.id = any (v_ids) for update skip locked) f;

    return query
        with taken as (
            delete from staged s where s.id = any (v_free)
            returning s.id, s.queue, s.partition, s.transaction_id, s.trace_id, s.producer_sub,
                      s.payload, s.codec, s.headers
        )
        select t.* from taken t join unnest(v_ids) with ordinality w (id, n) on w.id = t.id
         order by w.n;

    -- Numbers whose rows are all gone; without rows, those that could have had some.
    delete from staged_commits c
     where c.seq <= coalesce(v_seq, (
            select max(o.seq)
              from (select w.seq from staged_commits w order by w.seq limit p_limit) o))
       -- Not `not exists`: that may become a join with all there is.
       and (select s.id from staged s
             where s.transaction = c.transaction and s.deliver_at is null limit 1) is null;
end
$$;
