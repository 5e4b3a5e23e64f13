-- The staged rows that are due, as many as one round of the relay takes, in order.
--
-- p_limit   how many of each kind: committed in the order of commits, and due by the clock
-- p_bytes   enough payload; the first message is taken however large it is
-- last_seq  how far into the numbers of commits the rows reach; null when none has one
--
-- The kinds take turns, so that a backlog of one does not starve the other.
--
-- The tables are empty one minute and full the next, so no statistics hold. The limits inside
-- and the settings leave the planner one way: down the indexes, in order, until there is
-- enough.
create or replace function queen.due_staged(
    p_limit integer, p_bytes bigint, out ids bigint[], out last_seq bigint
)
language sql stable
set search_path = queen, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
    select array_agg(f.id order by f.turn, f.kind), max(f.seq)
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
     where f.before < p_bytes
$$;
