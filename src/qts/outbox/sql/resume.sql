-- $1 stream
WITH gone AS (DELETE FROM outbox_paused WHERE stream = $1 RETURNING stream)
SELECT pg_notify('outbox ' || stream, '') FROM gone
