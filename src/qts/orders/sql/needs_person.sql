-- $1 attempt, $2 why
UPDATE order_attempt SET needs_person = true, error_message = $2, updated_at = clock_timestamp()
 WHERE id = $1 AND status = 'UNKNOWN' AND NOT needs_person
