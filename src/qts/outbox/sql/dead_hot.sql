-- The row of an event that is not done yet as PostgreSQL knows it.
-- $1 event_id
SELECT id FROM outbox_event WHERE event_id = $1 FOR UPDATE
