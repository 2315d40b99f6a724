-- $1 broker
SELECT broker_order_id FROM broker_order WHERE broker = $1 AND state = 'OPEN'
