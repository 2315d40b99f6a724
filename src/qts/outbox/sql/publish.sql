-- One event, unless its id is known.
-- $1 event_id, $2 stream, $3 event type, $4 aggregate type, $5 aggregate id, $6 envelope,
-- $7 attempts at most, $8 seconds until it is due, $9 wake the consumers at the commit
WITH fresh AS (
    INSERT INTO outbox_event_id (event_id) VALUES ($1) ON CONFLICT DO NOTHING RETURNING event_id)
INSERT INTO outbox_event (
    event_id, stream, event_type, aggregate_type, aggregate_id, payload_json, max_attempts,
    next_retry_at)
SELECT event_id, $2, $3, $4, $5, $6::text::jsonb, $7,
       clock_timestamp() + make_interval(secs => $8)
  FROM fresh
RETURNING pg_current_xact_id()::text::bigint AS xid,
          CASE WHEN $9 THEN pg_notify('outbox ' || stream, '') END
