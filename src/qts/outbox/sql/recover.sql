-- Take events whose holder let its lock run out.
-- $1 stream, $2 at most, $3 token of this claim, $4 lock time
UPDATE outbox_event
   SET locked_by = $3, locked_until = clock_timestamp() + $4::interval,
       attempt_count = attempt_count + 1, last_attempt_at = clock_timestamp(),
       updated_at = clock_timestamp()
 WHERE ctid = ANY (ARRAY(
    SELECT ctid
      FROM outbox_event
     WHERE stream = $1 AND processed_at IS NULL
       AND next_retry_at <= statement_timestamp()
       AND locked_until < statement_timestamp() AND attempt_count < max_attempts
       AND NOT EXISTS (SELECT FROM outbox_paused WHERE stream = $1)
     ORDER BY next_retry_at, id
     LIMIT $2
       FOR UPDATE SKIP LOCKED))
RETURNING id, next_retry_at, attempt_count, max_attempts, aggregate_type, aggregate_id,
          payload_json::text AS body
