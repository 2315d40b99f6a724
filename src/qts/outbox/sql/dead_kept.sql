-- $1 id, $2 attempts, $3 error code, $4 error message
UPDATE outbox_event
   SET status = 'DEAD', processed_at = clock_timestamp(), updated_at = clock_timestamp(),
       last_attempt_at = clock_timestamp(), locked_by = NULL, locked_until = NULL,
       attempt_count = $2, max_attempts = greatest(max_attempts, $2),
       last_error_code = $3, last_error_message = $4
 WHERE id = $1 AND status = 'PROCESSING'
