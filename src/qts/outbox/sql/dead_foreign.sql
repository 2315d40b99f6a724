-- An event that did not come from here.
-- $1 event_id, $2 stream, $3 event type, $4 aggregate type, $5 aggregate id, $6 envelope
WITH known AS (INSERT INTO outbox_event_id (event_id) VALUES ($1) ON CONFLICT DO NOTHING)
INSERT INTO outbox_event (
    event_id, stream, event_type, aggregate_type, aggregate_id, payload_json)
VALUES ($1, $2, $3, $4, $5, $6::text::jsonb)
RETURNING id
