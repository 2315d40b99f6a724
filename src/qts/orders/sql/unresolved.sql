-- Attempts whose outcome is to be found out: unknown, or sent so long ago that nobody is at it.
-- $1 broker, $2 sent before
SELECT a.id, o.broker_order_id
  FROM order_attempt a LEFT JOIN broker_order o ON o.order_attempt_id = a.id
 WHERE a.broker = $1 AND (a.status = 'UNKNOWN' OR (a.status = 'SENT' AND a.sent_at < $2))
 ORDER BY a.sent_at
