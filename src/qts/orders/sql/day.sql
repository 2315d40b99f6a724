-- A broker's day so far: orders sent since its beginning and in the last minute, what was earned.
SELECT (SELECT count(*) FROM order_attempt WHERE sent_at >= $2 AND broker = $1) AS orders_today,
       (SELECT count(*) FROM order_attempt
         WHERE sent_at >= $3::timestamptz - interval '1 minute' AND broker = $1) AS orders_last_minute,
       COALESCE((SELECT sum(realised_pnl - fee) FROM fill
         WHERE traded_at >= $2 AND broker = $1 AND counted), 0) AS earned
