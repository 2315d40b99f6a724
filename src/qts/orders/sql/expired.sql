-- Attempts that never left and may not any more: whoever was to send them was lost, or gave up.
-- $1 broker, $2 now
SELECT a.id
  FROM order_attempt a JOIN order_intent i ON i.id = a.order_intent_id
 WHERE a.broker = $1 AND a.status = 'PREPARED' AND i.expires_at <= $2
