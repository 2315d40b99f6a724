-- $1 handler, $2 event_id
INSERT INTO outbox_handled (handler, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING
