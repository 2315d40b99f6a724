-- $1 broker, $2 order ids
SELECT o.broker_order_id, o.state, o.filled, o.applied, o.quantity, o.identifier, o.origin,
       a.status AS attempt_status
  FROM broker_order o LEFT JOIN order_attempt a ON a.id = o.order_attempt_id
 WHERE o.broker = $1 AND o.broker_order_id = ANY ($2)
