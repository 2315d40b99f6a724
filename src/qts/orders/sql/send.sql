-- From PREPARED to SENT where nothing stops it, on disk when it is answered; else nothing happens.
-- It is locked first: what is thrown while somebody else holds it stops it.
-- $1 attempt, $2 now
WITH one AS MATERIALIZED (
    SELECT a.id, i.strategy_key, i.intent_type, i.side, i.quantity, i.expires_at,
           i.cancel_requested_at
      FROM order_attempt a JOIN order_intent i ON i.id = a.order_intent_id
     WHERE a.id = $1 AND a.status = 'PREPARED' AND i.expires_at > $2
       AND i.cancel_requested_at IS NULL
       FOR NO KEY UPDATE OF a)
UPDATE order_attempt a
   SET status = 'SENT', sent_at = $2, needs_person = false, updated_at = clock_timestamp()
  FROM one
 WHERE a.id = one.id AND a.status = 'PREPARED'
   AND order_stop(one.strategy_key, one.intent_type) IS NULL
   AND market_stop(a.broker, a.symbol, one.intent_type) IS NULL
RETURNING a.id, a.order_intent_id, a.attempt_no, a.broker, a.symbol, a.identifier,
          a.request_json::text AS request, a.status, a.broker_order_id, a.sent_at,
          one.strategy_key, one.intent_type, one.side, one.quantity, one.expires_at,
          one.cancel_requested_at, set_config('synchronous_commit', 'on', true)
