-- The attempt of an intent that is, or may become, an order.
-- $1 intent
SELECT a.id
  FROM order_attempt a
  LEFT JOIN broker_order o ON o.order_attempt_id = a.id
 WHERE a.order_intent_id = $1 AND a.status IN ('PREPARED', 'SENT', 'UNKNOWN', 'ACKED')
   AND (o.state IS NULL OR o.state = 'OPEN')
