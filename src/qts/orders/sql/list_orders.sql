-- Intents with their latest attempt and its order, the youngest first.
-- $1 attempt state, $2 symbol, $3 open ones only, $4 at most, $5 this intent
SELECT i.id AS intent_id, i.created_at, i.strategy_key, i.intent_type, i.broker, i.symbol, i.side,
       i.order_type, i.quantity, i.price, i.status, i.reason_code, a.id AS attempt_id,
       a.attempt_no, a.status AS attempt_state, NULLIF(a.error_message, '') AS error,
       COALESCE(a.needs_person, false) AS needs_person, a.broker_order_id,
       o.state AS order_state, COALESCE(o.applied, 0) AS filled
  FROM order_intent i
  LEFT JOIN LATERAL (
        SELECT * FROM order_attempt a WHERE a.order_intent_id = i.id
         ORDER BY a.attempt_no DESC LIMIT 1) a ON true
  LEFT JOIN broker_order o ON o.order_attempt_id = a.id
 WHERE ($1::text IS NULL OR a.status = $1) AND ($2::text IS NULL OR i.symbol = $2)
   AND (NOT $3 OR i.status = 'CREATED') AND ($5::uuid IS NULL OR i.id = $5)
 ORDER BY i.created_at DESC
 LIMIT $4
