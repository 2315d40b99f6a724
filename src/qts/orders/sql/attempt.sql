-- One attempt and what it is for, locked.
-- $1 attempt
SELECT a.id, a.order_intent_id, a.attempt_no, a.broker, a.symbol, a.identifier,
       a.request_json::text AS request, a.status, a.broker_order_id, a.sent_at,
       i.strategy_key, i.intent_type, i.side, i.quantity, i.expires_at, i.cancel_requested_at
  FROM order_attempt a JOIN order_intent i ON i.id = a.order_intent_id
 WHERE a.id = $1
   FOR NO KEY UPDATE OF a
