-- $1 broker, $2 symbol
SELECT quantity, average_price, realised_pnl, fees, opened_at
  FROM position WHERE broker = $1 AND symbol = $2
