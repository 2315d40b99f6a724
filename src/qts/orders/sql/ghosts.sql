-- Orders at the venue whose attempt says that there is none.
-- $1 broker, $2 order ids
SELECT o.broker_order_id, a.status
  FROM broker_order o JOIN order_attempt a ON a.id = o.order_attempt_id
 WHERE o.broker = $1 AND o.broker_order_id = ANY ($2)
   AND a.status NOT IN ('SENT', 'UNKNOWN', 'ACKED')
