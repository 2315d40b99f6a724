-- $1 broker, $2 since, $3 and these
SELECT f.trade_id, f.quantity, f.price, f.counted, o.origin
  FROM fill f JOIN broker_order o USING (broker, broker_order_id)
 WHERE f.broker = $1 AND o.origin <> 'EXTERNAL' AND (f.traded_at >= $2 OR f.trade_id = ANY ($3))
