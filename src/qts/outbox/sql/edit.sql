-- Another envelope for a dead letter.
-- $1 event_id, $2 envelope
UPDATE outbox_event
   SET payload_json = $2::text::jsonb, updated_at = clock_timestamp()
 WHERE event_id = $1 AND processed_at IS NOT NULL
