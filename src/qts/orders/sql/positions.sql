-- $1 broker, or null for all
SELECT broker, symbol, quantity, average_price, realised_pnl, fees, opened_at, updated_at
  FROM position
 WHERE $1::text IS NULL OR broker = $1
 ORDER BY broker, symbol
