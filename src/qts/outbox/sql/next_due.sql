-- Seconds until an event comes due that is not due yet.
-- $1 stream
SELECT extract(epoch FROM next_retry_at - clock_timestamp())::float8
  FROM outbox_event
 WHERE stream = $1 AND processed_at IS NULL AND next_retry_at > statement_timestamp()
 ORDER BY next_retry_at
 LIMIT 1
