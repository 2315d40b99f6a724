-- The attempt an identifier belongs to, locked before its order; whether another order has it.
-- $1 broker, $2 identifier, $3 order id
SELECT a.id,
       EXISTS (SELECT FROM broker_order o
                WHERE o.order_attempt_id = a.id AND o.broker_order_id <> $3) AS is_taken
  FROM order_attempt a
 WHERE a.identifier = $2 AND a.broker = $1
   FOR NO KEY UPDATE OF a
