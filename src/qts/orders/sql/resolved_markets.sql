-- Markets that were suspended for an unknown outcome and have none left.
-- $1 broker
SELECT symbol
  FROM market_state m
 WHERE broker = $1 AND trade_status = 'SUSPENDED' AND reason_code = 'UNKNOWN'
   AND NOT EXISTS (SELECT FROM order_attempt a
                    WHERE a.broker = $1 AND a.symbol = m.symbol AND a.status = 'UNKNOWN')
