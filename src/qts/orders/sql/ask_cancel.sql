-- $1 intent, $2 now
UPDATE order_intent
   SET cancel_requested_at = COALESCE(cancel_requested_at, $2), updated_at = clock_timestamp()
 WHERE id = $1
