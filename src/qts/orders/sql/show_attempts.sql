-- $1 intent
SELECT id, attempt_no, status, identifier, broker_order_id, error_code, error_message, sent_at,
       next_retry_at, needs_person, updated_at
  FROM order_attempt WHERE order_intent_id = $1 ORDER BY attempt_no
