-- $1 stream
INSERT INTO outbox_paused (stream) VALUES ($1) ON CONFLICT DO NOTHING
