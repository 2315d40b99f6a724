-- Of these trades, those that are not known here.
-- $1 broker, $2 trade ids
SELECT t.trade_id
  FROM unnest($2::text[]) AS t (trade_id)
 WHERE NOT EXISTS (SELECT FROM fill f WHERE f.broker = $1 AND f.trade_id = t.trade_id)
