-- Why new orders of a market must not leave: the whole venue's reason before the market's own.
-- $1 broker, $2 symbol
SELECT symbol, reason_code
  FROM market_state
 WHERE broker = $1 AND symbol IN ('*', $2) AND trade_status = 'SUSPENDED'
 ORDER BY symbol <> '*'
 LIMIT 1
