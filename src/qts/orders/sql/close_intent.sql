-- The intent of an attempt whose order has ended.
-- $1 attempt, $2 COMPLETED or CANCELED, $3 FILLED or CANCELLED
UPDATE order_intent i
   SET status = $2, reason_code = CASE WHEN $2 = 'CANCELED' THEN $3 ELSE '' END,
       updated_at = clock_timestamp()
  FROM order_attempt a
 WHERE a.id = $1 AND i.id = a.order_intent_id
   AND (i.status = 'CREATED' OR (i.status = 'CANCELED' AND $2 = 'COMPLETED'))
