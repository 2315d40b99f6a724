-- An order as its venue tells of it now, in whatever order such news come: what is told only adds.
-- States rank OPEN, CANCELLED, FILLED, and the highest stays; an order all of whose quantity has
-- traded is FILLED. One by money that bought nothing has no quantity.
-- $1 broker, $2 order id, $3 attempt, $4 identifier, $5 symbol, $6 side, $7 type, $8 quantity,
-- $9 price, $10 filled, $11 state, $12 placed at
INSERT INTO broker_order AS o (
    broker, broker_order_id, order_attempt_id, origin, identifier, symbol, side, order_type,
    quantity, price, filled, state, placed_at)
VALUES ($1, $2, $3, CASE WHEN $3::uuid IS NULL THEN 'FOREIGN' ELSE 'OURS' END, $4, $5, $6, $7,
        NULLIF($8::numeric, 0), $9, $10,
        CASE WHEN $10::numeric >= NULLIF($8::numeric, 0) THEN 'FILLED' ELSE $11 END, $12)
ON CONFLICT (broker, broker_order_id) DO UPDATE
   SET order_attempt_id = COALESCE(o.order_attempt_id, EXCLUDED.order_attempt_id),
       origin = CASE WHEN EXCLUDED.order_attempt_id IS NULL THEN o.origin ELSE 'OURS' END,
       identifier = COALESCE(o.identifier, EXCLUDED.identifier),
       order_type = COALESCE(EXCLUDED.order_type, o.order_type),
       quantity = COALESCE(EXCLUDED.quantity, o.quantity),
       price = COALESCE(EXCLUDED.price, o.price),
       filled = GREATEST(o.filled, EXCLUDED.filled),
       state = CASE
           WHEN GREATEST(o.filled, EXCLUDED.filled) >= COALESCE(EXCLUDED.quantity, o.quantity)
               OR 'FILLED' IN (o.state, EXCLUDED.state) THEN 'FILLED'
           WHEN 'CANCELLED' IN (o.state, EXCLUDED.state) THEN 'CANCELLED'
           ELSE 'OPEN' END,
       placed_at = LEAST(o.placed_at, EXCLUDED.placed_at),
       updated_at = clock_timestamp()
RETURNING order_attempt_id, origin, symbol, side, quantity, filled, applied, state
