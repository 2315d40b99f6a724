-- $1 event_id
SELECT * FROM outbox_event_all WHERE event_id = $1
