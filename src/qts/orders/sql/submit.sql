-- A signal, an intent of it, its first attempt and the command to carry it out, all or nothing;
-- nothing when the signal has had this intent before. What must not leave now has no attempt, and
-- its intent says why.
-- $1 signal, $2 strategy, $3 symbol, $4 side, $5 reason, $6 decided at
-- $7 intent, $8 intent type, $9 broker, $10 order type, $11 quantity, $12 price,
-- $13 approved at, $14 expires at
-- $15 attempt, $16 identifier, $17 request, $18 … $25 the command, as outbox_publish has it
WITH stop AS MATERIALIZED (
    SELECT COALESCE(order_stop($2, $8), '') AS code),
told AS (
    INSERT INTO signal (id, strategy_key, symbol, side, reason, decided_at)
    VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING),
wanted AS (
    INSERT INTO order_intent (
        id, signal_id, intent_type, broker, strategy_key, symbol, side, order_type, quantity,
        price, approved_at, expires_at, status, reason_code)
    SELECT $7, $1, $8, $9, $2, $3, $4, $10, $11, $12, $13, $14,
           CASE code WHEN '' THEN 'CREATED' ELSE 'CANCELED' END, code
      FROM stop
    ON CONFLICT (signal_id, intent_type) DO NOTHING
    RETURNING id, reason_code),
tried AS (
    INSERT INTO order_attempt (
        id, order_intent_id, attempt_no, broker, symbol, identifier, request_json)
    SELECT $15, id, 1, $9, $3, $16, $17 FROM wanted WHERE reason_code = ''
    RETURNING id)
SELECT reason_code,
       (SELECT outbox_publish($18, $19, $20, $21, $22, $23, $24, $25, true) FROM tried) AS published
  FROM wanted
