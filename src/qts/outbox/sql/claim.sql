-- Take due events that nobody holds: one short statement, one transaction.
-- $1 stream, $2 at most, $3 token of this claim, $4 lock time, $5 look from here on
--
-- The inner query must give ctids to an array: a join may be planned to run it again and again,
-- and then claims more than its limit. $5 keeps the scan away from what was handled long ago while
-- an old snapshot keeps that from being cleaned up.
UPDATE outbox_event
   SET status = 'PROCESSING', locked_by = $3, locked_until = clock_timestamp() + $4::interval,
       attempt_count = attempt_count + 1, last_attempt_at = clock_timestamp(),
       updated_at = clock_timestamp()
 WHERE ctid = ANY (ARRAY(
    SELECT ctid
      FROM outbox_event
     WHERE stream = $1 AND processed_at IS NULL
       AND next_retry_at <= statement_timestamp() AND next_retry_at >= $5
       AND locked_until IS NULL AND attempt_count < max_attempts
       AND NOT EXISTS (SELECT FROM outbox_paused WHERE stream = $1)
     ORDER BY next_retry_at, id
     LIMIT $2
       FOR UPDATE SKIP LOCKED))
RETURNING id, next_retry_at, attempt_count, max_attempts, aggregate_type, aggregate_id,
          payload_json::text AS body
