-- One event, unless its id is known.
-- $1 event_id, $2 stream, $3 event type, $4 aggregate type, $5 aggregate id, $6 envelope,
-- $7 attempts at most, $8 seconds until it is due, $9 wake the consumers at the commit
SELECT outbox_publish($1, $2, $3, $4, $5, $6, $7, $8, $9)
