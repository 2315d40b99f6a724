-- $1 broker, $2 symbol, $3 only when suspended for this reason, or null
UPDATE market_state
   SET trade_status = 'ACTIVE', reason_code = '', detail = '', suspended_at = NULL,
       updated_at = clock_timestamp()
 WHERE broker = $1 AND symbol = $2 AND trade_status = 'SUSPENDED'
   AND ($3::text IS NULL OR reason_code = $3)
