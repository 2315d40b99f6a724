-- The order with the fill in it: FILLED when that was the last of its quantity.
-- $1 broker, $2 order id
UPDATE broker_order
   SET state = CASE WHEN filled >= quantity THEN 'FILLED' ELSE state END
 WHERE broker = $1 AND broker_order_id = $2
RETURNING order_attempt_id, origin, symbol, side, quantity, filled, applied, state
