-- Commits what some commands did to streams: a record in the journal of each, and the entries
-- that were added, in one transaction. If one of the streams is not what the caller took it for,
-- nothing is committed.
--
-- p_streams    the streams that were read or written, sorted
-- p_versions   the last record of each that the caller knows
-- p_heads      how many messages the caller knows of in the partition of each
-- p_records    what changed; null: the stream was only read
-- p_alive      whether there is a stream afterwards
-- p_queues …   the entries that were added, as `queen.append` takes them; p_ids are partitions
--
-- One row per stream: whether all was committed, and how far the stream is now.
create or replace function queen.commit_entries(
    p_streams bigint[],
    p_versions bigint[],
    p_heads bigint[],
    p_records bytea[],
    p_alive boolean[],
    p_queues integer[],
    p_ids bigint[],
    p_totals integer[],
    p_part integer[],
    p_before integer[],
    p_count integer[],
    p_codec smallint[],
    p_hashes bytea[],
    p_body bytea[]
) returns table (
    is_done boolean, stream_id bigint, version bigint, head bigint, tail bigint, now_ms bigint,
    created_at timestamptz
)
language plpgsql
set search_path = queen, pg_temp
as $$
#variable_conflict use_column
declare
    v_is_done boolean;
    v_outcomes smallint[];
    v_times timestamptz[];
begin
    perform 1 from entry_streams s
      where s.id in (select w.id from unnest(p_streams, p_records) w (id, record)
                      where w.record is not null)
      order by s.id for no key update;
    if cardinality(p_ids) > 0 then
        -- As in every append: seals before partitions, each in a statement of its own.
        perform pg_advisory_xact_lock_shared(7001, q) from unnest(p_queues) q;
        perform 1 from partitions p where p.id = any (p_ids) order by p.id for no key update;
    end if;

    select coalesce(bool_and(coalesce(s.version = w.version and p.head = w.head, false)), true)
      into v_is_done
      from unnest(p_streams, p_versions, p_heads) w (id, version, head)
      left join entry_streams s on s.id = w.id
      left join partitions p on p.id = s.partition_id;

    if v_is_done then
        insert into entry_journal (stream_id, version, body)
        select w.id, w.version + 1, w.record
          from unnest(p_streams, p_versions, p_records) w (id, version, record)
         where w.record is not null;
        update entry_streams s set version = w.version + 1, is_alive = w.alive
          from unnest(p_streams, p_versions, p_records, p_alive) w (id, version, record, alive)
         where s.id = w.id and w.record is not null;
        if cardinality(p_ids) > 0 then
            select array_agg(a.outcome), array_agg(a.created_at) into v_outcomes, v_times
              from queen.append(p_queues, p_ids, p_totals,
                                array_fill(null::bigint, array[cardinality(p_ids)]),
                                array_fill(false, array[cardinality(p_ids)]),
                                p_part, p_before, p_count, p_codec, p_hashes, p_body) a;
            if 0 <> any (v_outcomes) then
                raise exception 'entries were not appended: %', v_outcomes;
            end if;
        end if;
    end if;

    return query
    select v_is_done, w.id, s.version, p.head, p.tail,
           (extract(epoch from clock_timestamp()) * 1000)::bigint,
           v_times[array_position(p_ids, s.partition_id)]
      from unnest(p_streams) w (id)
      left join entry_streams s on s.id = w.id
      left join partitions p on p.id = s.partition_id;
end
$$;
