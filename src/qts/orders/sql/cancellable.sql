-- $1 attempt
SELECT a.broker_order_id
  FROM order_attempt a JOIN broker_order o ON o.order_attempt_id = a.id
 WHERE a.id = $1 AND a.status = 'ACKED' AND o.state = 'OPEN'
