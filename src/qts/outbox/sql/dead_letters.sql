-- $1 stream, $2 at most
SELECT event_id, stream, event_type, attempt_count, coalesce(last_error_code, ''),
       coalesce(last_error_message, ''), processed_at
  FROM outbox_event
 WHERE stream = $1 AND processed_at IS NOT NULL
 ORDER BY processed_at DESC
 LIMIT $2
