-- How we stand at a broker, in one look and one snapshot. Numbers as text: they stay exact.
-- $1 broker, $2 when the trading day began, $3 now
WITH held AS (
    SELECT symbol, quantity, average_price FROM position WHERE broker = $1 AND quantity <> 0
), pending AS (
    -- Under way and not in a position yet: an unknown outcome counts in full, and an order that the
    -- venue calls filled counts until its last fill has arrived.
    SELECT i.symbol, i.side, i.quantity - COALESCE(o.applied, 0) AS remaining, i.price,
           a.status = 'UNKNOWN' AS unknown
      FROM order_intent i
      JOIN order_attempt a ON a.order_intent_id = i.id
                          AND a.status IN ('PREPARED', 'SENT', 'UNKNOWN', 'ACKED')
      LEFT JOIN broker_order o ON o.broker = a.broker AND o.broker_order_id = a.broker_order_id
     WHERE i.broker = $1 AND i.status = 'CREATED' AND i.quantity > COALESCE(o.applied, 0)
    UNION ALL  -- not OR: each half has an index that does not grow with the orders of the past
    SELECT i.symbol, i.side, o.filled - o.applied, i.price, a.status = 'UNKNOWN'
      FROM broker_order o
      JOIN order_attempt a ON a.broker = o.broker AND a.broker_order_id = o.broker_order_id
                          AND a.status IN ('PREPARED', 'SENT', 'UNKNOWN', 'ACKED')
      JOIN order_intent i ON i.id = a.order_intent_id AND i.status <> 'CREATED'
     WHERE o.broker = $1 AND o.applied < o.filled
), suspended AS (
    SELECT symbol, reason_code = 'FROZEN' AS frozen
      FROM market_state WHERE broker = $1 AND trade_status = 'SUSPENDED'
)
SELECT (SELECT COALESCE(json_agg(json_build_array(symbol, quantity::text, average_price::text)), '[]')
          FROM held) AS held,
       (SELECT COALESCE(json_agg(json_build_array(
                   symbol, side, remaining::text, price::text, unknown)), '[]')
          FROM pending) AS pending,
       (SELECT COALESCE(json_agg(symbol) FILTER (WHERE NOT frozen), '[]') FROM suspended)
           AS suspended,
       (SELECT COALESCE(json_agg(symbol) FILTER (WHERE frozen), '[]') FROM suspended) AS frozen,
       (SELECT count(*) FROM order_attempt WHERE sent_at >= $2 AND broker = $1) AS orders_today,
       (SELECT count(*) FROM order_attempt
         WHERE sent_at >= $3::timestamptz - interval '1 minute' AND broker = $1)
           AS orders_last_minute,
       COALESCE((SELECT sum(realised_pnl - fee) FROM fill
         WHERE traded_at >= $2 AND broker = $1 AND counted), 0) AS earned
