-- $1 intent, $2 COMPLETED or CANCELED, $3 why
UPDATE order_intent
   SET status = $2, reason_code = $3, updated_at = clock_timestamp()
 WHERE id = $1 AND (status = 'CREATED' OR (status = 'CANCELED' AND $2 = 'COMPLETED'))
