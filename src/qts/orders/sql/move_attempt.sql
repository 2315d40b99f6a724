-- Compare and set: nothing happens when the attempt is elsewhere already.
-- $1 attempt, $2 from these states, $3 to, $4 order id, $5 error code, $6 error text,
-- $7 next retry at, $8 sent at
UPDATE order_attempt
   SET status = $3, broker_order_id = COALESCE($4, broker_order_id), error_code = $5,
       error_message = $6, next_retry_at = COALESCE($7, next_retry_at),
       sent_at = COALESCE($8, sent_at), needs_person = false, updated_at = clock_timestamp()
 WHERE id = $1 AND status = ANY ($2::text[])
