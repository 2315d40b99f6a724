-- Orders of a symbol that belong to other attempts.
-- $1 broker, $2 symbol, $3 attempt
SELECT broker_order_id
  FROM broker_order
 WHERE broker = $1 AND symbol = $2 AND order_attempt_id IS NOT NULL AND order_attempt_id <> $3
