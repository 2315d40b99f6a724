-- What the fills have made of it; the quantity must be what they have moved it to already.
-- $1 broker, $2 symbol, $3 quantity, $4 average, $5 realised, $6 fees, $7 opened at,
-- $8 last traded at, $9 last trade id
UPDATE position
   SET average_price = $4, realised_pnl = $5, fees = $6, opened_at = $7, last_traded_at = $8,
       last_trade_id = $9, updated_at = clock_timestamp()
 WHERE broker = $1 AND symbol = $2 AND quantity = $3
