-- Takes messages that are due out of staging; the caller appends them in this transaction.
--
-- p_limit   how many of each kind: committed in the order of commits, and due by the clock
-- p_bytes   enough payload; the first message is taken however large it is
--
-- The kinds take turns, so that a backlog of one does not starve the other. Rows that
-- somebody cancels at this moment are left to them.
--
-- The tables are empty one minute and full the next, so no statistics hold. The settings leave
-- the planner one way: down the indexes, in order, until there is enough.
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
language plpgsql
set search_path = queen, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
declare
    v_ids bigint[];
    v_seq bigint;
begin
    select array_agg(f.id order by f.turn, f.kind), max(f.seq) into v_ids, v_seq
      from (
        select d.*, sum(d.bytes) over (order by d.turn, d.kind) - d.bytes as before
          from (
            (select 1 as kind, c.seq, s.id, octet_length(s.payload) as bytes,
                    row_number() over (order by c.seq, s.id) as turn
               from (select o.seq, o.transaction from staged_commits o
                      order by o.seq limit p_limit) c
              cross join lateral (
                    select m.id, m.payload from staged m
                     where m.transaction = c.transaction and m.deliver_at is null
                     order by m.id limit p_limit) s
              order by c.seq, s.id limit p_limit)
            union all
            (select 2, null, s.id, octet_length(s.payload),
                    row_number() over (order by s.deliver_at, s.id)
               from staged s
              where s.deliver_at <= statement_timestamp()
              order by s.deliver_at, s.id limit p_limit)
          ) d
      ) f
     where f.before < p_bytes;

    return query
        with free as (
            select s.id from staged s where s.id = any (v_ids) for update skip locked
        ), taken as (
            delete from staged s using free f where s.id = f.id
            returning s.id, s.queue, s.partition, s.transaction_id, s.trace_id, s.producer_sub,
                      s.payload, s.codec
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
