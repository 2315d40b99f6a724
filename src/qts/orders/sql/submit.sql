-- A signal, an intent of it and its first attempt, unless the signal has had this intent before.
-- $1 signal, $2 strategy, $3 symbol, $4 side, $5 reason, $6 decided at
-- $7 intent, $8 intent type, $9 broker, $10 order type, $11 quantity, $12 price,
-- $13 approved at, $14 expires at, $15 status, $16 why it was canceled
-- $17 attempt, or null for none, $18 identifier, $19 request
WITH told AS (
    INSERT INTO signal (id, strategy_key, symbol, side, reason, decided_at)
    VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING),
wanted AS (
    INSERT INTO order_intent (
        id, signal_id, intent_type, broker, strategy_key, symbol, side, order_type, quantity,
        price, approved_at, expires_at, status, reason_code)
    VALUES ($7, $1, $8, $9, $2, $3, $4, $10, $11, $12, $13, $14, $15, $16)
    ON CONFLICT (signal_id, intent_type) DO NOTHING
    RETURNING id),
tried AS (
    INSERT INTO order_attempt (
        id, order_intent_id, attempt_no, broker, symbol, identifier, request_json)
    SELECT $17, id, 1, $9, $3, $18, $19 FROM wanted WHERE $17::uuid IS NOT NULL)
SELECT id FROM wanted
