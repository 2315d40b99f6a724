-- The attempt that takes over.
-- $1 attempt, $2 intent, $3 number, $4 broker, $5 symbol, $6 identifier, $7 request
INSERT INTO order_attempt (id, order_intent_id, attempt_no, broker, symbol, identifier, request_json)
VALUES ($1, $2, $3, $4, $5, $6, $7)
