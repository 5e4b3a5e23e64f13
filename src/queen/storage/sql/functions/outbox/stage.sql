-- Checks messages for one partition and stages them, in order.
--
-- A message may wait here for long, so what would be plain text in a queue that keeps
-- nothing in plain text is refused: push it over HTTP.
create or replace function queen.stage(
    p_queue text,
    p_partition text,
    p_payloads jsonb[],
    p_ids text[],
    p_trace text,
    p_deliver_at timestamptz,
    p_headers jsonb
) returns void
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_reason text := coalesce(
        queen.reason_against_name('queue', p_queue),
        queen.reason_against_name('partition', p_partition),
        queen.reason_against_headers(p_headers));
begin
    if p_trace !~ '^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$' then
        v_reason := coalesce(v_reason, 'trace_id is not a UUID');
    end if;
    if p_deliver_at > clock_timestamp() + interval '3650 days' then
        v_reason := coalesce(v_reason, 'deliver_at is more than 3650 days ahead');
    end if;
    if v_reason is null then
        select coalesce(
                queen.reason_against_payload(w.payload),
                case when w.id = '' then 'transaction_id is empty'
                     when octet_length(w.id) > 255 then 'transaction_id is longer than 255 bytes'
                end) into v_reason
          from unnest(p_payloads, p_ids) with ordinality w (payload, id, n)
         where queen.reason_against_payload(w.payload) is not null
            or octet_length(w.id) not between 1 and 255
         order by w.n limit 1;
    end if;
    if v_reason is not null then
        raise exception using errcode = '22023', message = 'queen.push: ' || v_reason;
    end if;
    if exists (select 1 from queues q
                where q.name = p_queue and q.options ->> 'encryptionEnabled' = 'true') then
        raise exception using errcode = '22023', message = format(
            'queen.push: queue %L is encrypted and staging is not; push over HTTP', p_queue);
    end if;
    insert into staged (queue, partition, transaction_id, trace_id, payload, headers, deliver_at)
    select p_queue, p_partition, w.id, p_trace, convert_to(w.payload::text, 'UTF8'),
           -- Most have none.
           case when p_headers <> '{}' then convert_to(p_headers::text, 'UTF8') end,
           -- What is due already is pushed now, in the order of commits.
           case when p_deliver_at > clock_timestamp() then p_deliver_at end
      from unnest(p_payloads, p_ids) with ordinality w (payload, id, n)
     order by w.n;
end
$$;
