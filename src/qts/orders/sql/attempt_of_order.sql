-- $1 broker, $2 order id
SELECT order_attempt_id FROM broker_order WHERE broker = $1 AND broker_order_id = $2
