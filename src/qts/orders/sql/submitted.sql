-- What a signal has led to already.
-- $1 signal, $2 intent type
SELECT i.id, i.broker, i.symbol, i.side, i.reason_code,
       (SELECT a.id FROM order_attempt a WHERE a.order_intent_id = i.id
         ORDER BY a.attempt_no DESC LIMIT 1) AS attempt_id
  FROM order_intent i
 WHERE i.signal_id = $1 AND i.intent_type = $2
