-- $1 broker
SELECT count(*) FROM order_attempt WHERE broker = $1 AND status IN ('SENT', 'UNKNOWN')
