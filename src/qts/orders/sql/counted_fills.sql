-- $1 broker, $2 symbol
SELECT trade_id, broker_order_id, symbol, side, quantity, price, fee, traded_at
  FROM fill
 WHERE broker = $1 AND symbol = $2 AND counted
