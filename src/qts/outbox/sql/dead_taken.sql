-- The way to DEAD leads through PROCESSING.
-- $1 id, $2 who
UPDATE outbox_event
   SET status = 'PROCESSING', locked_by = $2, locked_until = clock_timestamp(),
       attempt_count = attempt_count + 1
 WHERE id = $1 AND status = 'PENDING'
