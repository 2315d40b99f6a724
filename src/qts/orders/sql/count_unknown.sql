-- $1 broker, $2 symbol
SELECT count(*) FROM order_attempt WHERE broker = $1 AND symbol = $2 AND status = 'UNKNOWN'
