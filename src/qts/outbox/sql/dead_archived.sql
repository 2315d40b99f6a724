-- Take an event out of the archive: it was done with here, but its handler failed elsewhere.
-- $1 event_id
WITH back AS (DELETE FROM outbox_archive WHERE event_id = $1 RETURNING *)
INSERT INTO outbox_event (
    id, event_id, stream, event_type, aggregate_type, aggregate_id, payload_json, max_attempts,
    next_retry_at, created_at)
SELECT id, event_id, stream, event_type, aggregate_type, aggregate_id, payload_json, max_attempts,
       next_retry_at, created_at
  FROM back
RETURNING id
