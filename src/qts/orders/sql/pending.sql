-- What is under way at a broker and may still become a fill; an unknown outcome counts in full.
SELECT i.symbol, i.side, i.quantity - COALESCE(o.applied, 0) AS remaining, i.price,
       a.status = 'UNKNOWN' AS unknown
  FROM order_intent i
  JOIN order_attempt a ON a.order_intent_id = i.id
                      AND a.status IN ('PREPARED', 'SENT', 'UNKNOWN', 'ACKED')
  LEFT JOIN broker_order o ON o.broker = a.broker AND o.broker_order_id = a.broker_order_id
 WHERE i.broker = $1 AND i.status = 'CREATED' AND i.quantity > COALESCE(o.applied, 0)
