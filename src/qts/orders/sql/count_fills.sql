-- These fills are in the position, and each has realised so much; their quantity moves it.
-- $1 broker, $2 trade ids, $3 what each realised
UPDATE fill f
   SET counted = true, realised_pnl = n.realised
  FROM unnest($2::text[], $3::numeric[]) AS n (trade_id, realised)
 WHERE f.broker = $1 AND f.trade_id = n.trade_id
