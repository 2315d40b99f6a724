-- $1 broker, $2 symbol
SELECT FROM market_state WHERE broker = $1 AND symbol = $2 FOR UPDATE
