-- What a person or a block has suspended keeps its reason; freezing is more than a suspension.
-- $1 broker, $2 symbol, $3 reason code, $4 detail, $5 now
INSERT INTO market_state AS m (broker, symbol, trade_status, reason_code, detail, suspended_at)
VALUES ($1, $2, 'SUSPENDED', $3, $4, $5)
ON CONFLICT (broker, symbol) DO UPDATE
   SET trade_status = 'SUSPENDED', reason_code = $3, detail = $4, suspended_at = $5,
       updated_at = clock_timestamp()
 WHERE m.trade_status = 'ACTIVE' OR (m.reason_code = 'UNKNOWN' AND $3 <> 'UNKNOWN')
    OR (m.reason_code = 'BY_HAND' AND $3 = 'FROZEN')
