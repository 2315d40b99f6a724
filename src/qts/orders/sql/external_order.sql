-- A holding that a person took over, as an order that has ended.
-- $1 broker, $2 name, $3 symbol, $4 side, $5 quantity, $6 at
INSERT INTO broker_order (broker, broker_order_id, origin, symbol, side, quantity, placed_at)
VALUES ($1, $2, 'EXTERNAL', $3, $4, $5, $6)
