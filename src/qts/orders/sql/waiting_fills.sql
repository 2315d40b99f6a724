-- Fills of our own orders that are in no position yet.
-- $1 broker, $2 symbol
SELECT f.trade_id, f.broker_order_id, f.symbol, f.side, f.quantity, f.price, f.fee, f.traded_at
  FROM fill f JOIN broker_order o USING (broker, broker_order_id)
 WHERE f.broker = $1 AND f.symbol = $2 AND NOT f.counted AND o.origin <> 'FOREIGN'
 ORDER BY f.traded_at, f.trade_id
