-- Wake the consumers of what came back: it may lie where they no longer look.
-- $1 stream
SELECT pg_notify('outbox ' || $1, 'all')
