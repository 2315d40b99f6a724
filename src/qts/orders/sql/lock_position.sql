-- The position of a symbol, locked; begun flat when there was none.
-- $1 broker, $2 symbol, $3 whether it may be below zero
INSERT INTO position AS p (broker, symbol, allows_short) VALUES ($1, $2, $3)
ON CONFLICT (broker, symbol) DO UPDATE SET allows_short = p.allows_short OR $3
RETURNING quantity, average_price, realised_pnl, fees, opened_at, last_traded_at, last_trade_id,
          allows_short
