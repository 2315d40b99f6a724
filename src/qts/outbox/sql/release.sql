-- Given back without an attempt: the next claim may take it at once.
-- $1 ids, $2 tokens
UPDATE outbox_event
   SET status = 'PENDING', locked_by = NULL, locked_until = NULL,
       attempt_count = attempt_count - 1, updated_at = clock_timestamp()
 WHERE id = ANY ($1::bigint[]) AND locked_by = ANY ($2::text[])
