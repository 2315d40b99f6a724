-- $1 broker, $2 trade id
SELECT broker_order_id, quantity, price FROM fill WHERE broker = $1 AND trade_id = $2
