-- Forget dead letters older than so many seconds, and keep their ids.
-- $1 stream or null, $2 seconds
DELETE FROM outbox_event
 WHERE processed_at < clock_timestamp() - make_interval(secs => $2)
   AND ($1::text IS NULL OR stream = $1)
