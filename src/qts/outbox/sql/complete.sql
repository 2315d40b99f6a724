-- Done: move to the archive what this claim still holds.
-- $1 ids, $2 token
WITH done AS (
    DELETE FROM outbox_event
     WHERE id = ANY ($1::bigint[]) AND locked_by = $2
    RETURNING *)
INSERT INTO outbox_archive (
    id, event_id, stream, event_type, aggregate_type, aggregate_id, payload_json, attempt_count,
    max_attempts, next_retry_at, last_attempt_at, locked_by, last_error_code, last_error_message,
    created_at, processed_at)
SELECT id, event_id, stream, event_type, aggregate_type, aggregate_id, payload_json, attempt_count,
       max_attempts, next_retry_at, last_attempt_at, locked_by, last_error_code,
       last_error_message, created_at, clock_timestamp()
  FROM done
