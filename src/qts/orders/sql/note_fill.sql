-- A fill, once; it counts in no position yet.
-- $1 broker, $2 trade id, $3 order id, $4 symbol, $5 side, $6 quantity, $7 price, $8 fee, $9 at
INSERT INTO fill (
    broker, trade_id, broker_order_id, symbol, side, quantity, price, fee, traded_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (broker, trade_id) DO NOTHING
