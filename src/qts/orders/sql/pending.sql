-- What is under way at a broker and is not in a position yet: an unknown outcome counts in full, and
-- an order that the venue calls filled counts until its last fill has arrived.
SELECT i.symbol, i.side,
       CASE i.status WHEN 'CREATED' THEN i.quantity ELSE o.filled END
           - COALESCE(o.applied, 0) AS remaining,
       i.price, a.status = 'UNKNOWN' AS unknown
  FROM order_intent i
  JOIN order_attempt a ON a.order_intent_id = i.id
                      AND a.status IN ('PREPARED', 'SENT', 'UNKNOWN', 'ACKED')
  LEFT JOIN broker_order o ON o.broker = a.broker AND o.broker_order_id = a.broker_order_id
 WHERE i.broker = $1 AND i.status = 'CREATED' AND i.quantity > COALESCE(o.applied, 0)
    OR o.broker = $1 AND o.applied < o.filled
