-- Many events, in their order, but for those whose ids are known.
-- as publish, in arrays
WITH fresh AS (
    INSERT INTO outbox_event_id (event_id)
    SELECT unnest($1::uuid[]) ON CONFLICT DO NOTHING RETURNING event_id)
INSERT INTO outbox_event (
    event_id, stream, event_type, aggregate_type, aggregate_id, payload_json, max_attempts,
    next_retry_at)
SELECT event_id, v.stream, v.event_type, v.aggregate_type, v.aggregate_id, v.body::jsonb,
       v.max_attempts, (SELECT clock_timestamp()) + make_interval(secs => v.wait_s)
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::int[],
              $8::float8[]) WITH ORDINALITY
       AS v (event_id, stream, event_type, aggregate_type, aggregate_id, body, max_attempts,
             wait_s, place)
  JOIN fresh USING (event_id)
 ORDER BY v.place
RETURNING event_id, pg_current_xact_id()::text::bigint AS xid
