-- Attempts used up by workers that never said how they ended.
-- $1 stream
UPDATE outbox_event
   SET status = 'DEAD', processed_at = clock_timestamp(), updated_at = clock_timestamp(),
       locked_by = NULL, locked_until = NULL,
       last_error_code = 'WORKER_LOST',
       last_error_message = locked_by || ' held it and was lost; attempts are used up'
 WHERE ctid = ANY (ARRAY(
    SELECT ctid
      FROM outbox_event
     WHERE stream = $1 AND processed_at IS NULL
       AND locked_until < statement_timestamp() AND attempt_count >= max_attempts
       FOR UPDATE SKIP LOCKED))
RETURNING event_id
