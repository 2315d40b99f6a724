-- $1 intent
SELECT f.trade_id, f.broker_order_id, f.quantity, f.price, f.fee, f.realised_pnl, f.counted,
       f.traded_at
  FROM fill f
  JOIN broker_order o USING (broker, broker_order_id)
  JOIN order_attempt a ON a.id = o.order_attempt_id
 WHERE a.order_intent_id = $1
 ORDER BY f.traded_at, f.trade_id
