-- Failed: wait for another attempt, or end as a dead letter.
-- $1 ids, $2 tokens, $3 seconds to wait, $4 dead at once, $5 error codes, $6 error messages
UPDATE outbox_event e
   SET status = CASE WHEN v.dead OR e.attempt_count >= e.max_attempts
                     THEN 'DEAD' ELSE 'PENDING' END,
       processed_at = CASE WHEN v.dead OR e.attempt_count >= e.max_attempts
                           THEN clock_timestamp() END,
       next_retry_at = clock_timestamp() + make_interval(secs => v.wait_s),
       locked_by = NULL, locked_until = NULL,
       last_error_code = v.code, last_error_message = v.message,
       updated_at = clock_timestamp()
  FROM unnest($1::bigint[], $2::text[], $3::float8[], $4::bool[], $5::text[], $6::text[])
       AS v (id, token, wait_s, dead, code, message)
 WHERE e.id = v.id AND e.locked_by = v.token
RETURNING e.id, e.status
