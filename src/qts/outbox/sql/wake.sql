-- $1 stream
SELECT pg_notify('outbox ' || $1, '')
