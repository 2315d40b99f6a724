-- A row for an order of which only a fill is known; locked when it was there.
-- $1 broker, $2 order id, $3 symbol, $4 side, $5 at
INSERT INTO broker_order AS o (broker, broker_order_id, origin, symbol, side, placed_at)
VALUES ($1, $2, 'FOREIGN', $3, $4, $5)
ON CONFLICT (broker, broker_order_id) DO UPDATE SET updated_at = clock_timestamp()
