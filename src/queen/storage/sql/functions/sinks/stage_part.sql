-- Stages segments of one task; a part that is there already stays as it is.
--
-- What a crash loses of it is noticed when the batch is published, so nothing waits for the disk.
create or replace function queen.stage_part(
    p_query text,
    p_batch bigint,
    p_run text,
    p_task integer,
    p_attempt bigint,
    p_part integer,
    p_compared boolean,
    p_ids bigint[],
    p_queues text[],
    p_partitions text[],
    p_counts integer[],
    p_codec smallint[],
    p_hashes bytea[],
    p_body bytea[]
) returns boolean
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_part bigint;
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into sink_parts (query, batch, run, task, attempt, part, messages, compared)
    values (p_query, p_batch, p_run, p_task, p_attempt, p_part,
            (select sum(n) from unnest(p_counts) n), p_compared)
    on conflict do nothing
    returning id into v_part;
    if v_part is null then
        return false;
    end if;
    insert into sink_pieces (part_id, position, partition_id, messages, bytes, queue, partition)
    select v_part, w.at, w.id, w.n, length(w.body), w.queue, w.partition
      from unnest(p_ids, p_counts, p_body, p_queues, p_partitions)
           with ordinality w (id, n, body, queue, partition, at);
    insert into segments
        (partition_id, base_offset, end_offset, created_at, queue_id, codec, hashes, body)
    select -v_part, w.at, w.at + 1, 'infinity', 0, w.codec, w.hashes, w.body
      from unnest(p_codec, p_hashes, p_body) with ordinality w (codec, hashes, body, at);
    return true;
end
$$;
