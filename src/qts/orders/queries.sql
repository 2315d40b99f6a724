-- name: submit
-- Insert a signal, its intent, the first attempt and the command to place it, all or nothing.
-- Return nothing when the signal already has this intent, or the lease another epoch. When a stop applies, the intent is
-- inserted without an attempt and carries the stop's code.
-- $1 signal, $2 strategy, $3 symbol, $4 side, $5 reason, $6 decided at
-- $7 intent, $8 intent type, $9 broker, $10 account, $11 order type, $12 quantity, $13 price,
-- $14 approved at, $15 expires at
-- $16 attempt, $17 client order id, $18 request, $19 … $27 the command, as in outbox_publish
-- $28 epoch of the lease; null outside a run
WITH stop AS MATERIALIZED (
    SELECT COALESCE(order_stop($9, $10, $2, $8), '') AS code
     WHERE lease_holds($9, $10, $28)),
new_signal AS (
    INSERT INTO signal (id, strategy_key, symbol, side, reason, decided_at)
    SELECT $1, $2, $3, $4, $5, $6 FROM stop ON CONFLICT DO NOTHING),
new_intent AS (
    INSERT INTO order_intent (
        id, signal_id, intent_type, broker, account, strategy_key, symbol, side, order_type,
        quantity, price, approved_at, expires_at, status, reason_code)
    SELECT $7, $1, $8, $9, $10, $2, $3, $4, $11, $12, $13, $14, $15,
           CASE code WHEN '' THEN 'CREATED' ELSE 'CANCELED' END, code
      FROM stop
    ON CONFLICT (signal_id, intent_type, broker, account) DO NOTHING
    RETURNING id, reason_code),
new_attempt AS (
    INSERT INTO order_attempt (
        id, order_intent_id, attempt_no, broker, account, symbol, identifier, request_json)
    SELECT $16, id, 1, $9, $10, $3, $17, $18 FROM new_intent WHERE reason_code = ''
    RETURNING id)
SELECT reason_code,
       (SELECT outbox_publish(
            $19, $20, $21, $22, $23, $24, $25, $26, $27, true) FROM new_attempt)
           AS published
  FROM new_intent

-- name: send_directly
-- Insert a signal, its intent, the attempt as SENT and its command as claimed, all or nothing, if
-- nothing stops it and the facts it was approved on still hold. `code` says why nothing was
-- inserted: FENCED (the lease has another epoch), KNOWN (the signal has this intent), EXPIRED, PAUSED (its stream), BEHIND (an earlier
-- command of its symbol is unfinished), CHANGED (the facts), or the code of a stop.
-- The commit must be durable before the caller sends: Database.reserved() sets that.
-- $1 … $18 and $19 … $26 as in submit
-- $27 now, $28 claim token, $29 lock TTL
-- facts: $30 position, $31 pending buys, $32 pending sells of the symbol; of the account, for an
-- entry: $33 sum of positions, $34 sum of pending quantities, $35 pending orders,
-- $36 a moment shortly before the facts were read, $37 orders sent since; $38 epoch of the lease
WITH lease AS MATERIALIZED (
    SELECT FROM account WHERE broker = $9 AND account = $10 AND epoch = $38 FOR SHARE
), pending AS MATERIALIZED (
    SELECT i.symbol, i.side, i.quantity - COALESCE(o.applied, 0) AS remaining
      FROM order_intent i
      JOIN order_attempt a ON a.order_intent_id = i.id
                          AND a.status IN ('PREPARED', 'SENT', 'UNKNOWN', 'ACKED')
      LEFT JOIN broker_order o ON o.broker = a.broker AND o.account = a.account
                              AND o.broker_order_id = a.broker_order_id
     WHERE i.broker = $9 AND i.account = $10 AND i.status = 'CREATED'
       AND i.quantity > COALESCE(o.applied, 0)
    UNION ALL
    SELECT i.symbol, i.side, o.filled - o.applied
      FROM broker_order o
      JOIN order_attempt a ON a.broker = o.broker AND a.account = o.account
                          AND a.broker_order_id = o.broker_order_id
                          AND a.status IN ('PREPARED', 'SENT', 'UNKNOWN', 'ACKED')
      JOIN order_intent i ON i.id = a.order_intent_id AND i.status <> 'CREATED'
     WHERE o.broker = $9 AND o.account = $10 AND o.applied < o.filled
), totals AS MATERIALIZED (
    SELECT COALESCE(sum(remaining) FILTER (WHERE symbol = $3 AND side = 'BUY'), 0) AS buys,
           COALESCE(sum(remaining) FILTER (WHERE symbol = $3 AND side = 'SELL'), 0) AS sells,
           COALESCE(sum(remaining), 0) AS quantity, count(*) AS orders
      FROM pending
), verdict AS MATERIALIZED (
    SELECT CASE
           WHEN NOT EXISTS (SELECT FROM lease) THEN 'FENCED'
           WHEN EXISTS (SELECT FROM order_intent
                         WHERE signal_id = $1 AND intent_type = $8 AND broker = $9
                           AND account = $10) THEN 'KNOWN'
           WHEN $15::timestamptz <= $27::timestamptz THEN 'EXPIRED'
           WHEN account_stop.code IS NOT NULL THEN account_stop.code
           WHEN market_stop.code IS NOT NULL THEN market_stop.code
           WHEN EXISTS (SELECT FROM outbox_paused WHERE stream = $20) THEN 'PAUSED'
           WHEN EXISTS (SELECT FROM outbox_event e
                         WHERE e.stream = $20 AND e.account = $24 AND e.aggregate_type = $22
                           AND e.aggregate_id = $23 AND e.processed_at IS NULL) THEN 'BEHIND'
           WHEN buys <> $31 OR sells <> $32
                OR $30 <> COALESCE((SELECT p.quantity FROM position p
                                     WHERE p.broker = $9 AND p.account = $10 AND p.symbol = $3), 0)
                THEN 'CHANGED'
           WHEN $8 <> 'ENTRY' THEN ''
           WHEN quantity <> $34 OR orders <> $35
                OR $33 <> COALESCE((SELECT sum(p.quantity) FROM position p
                                     WHERE p.broker = $9 AND p.account = $10
                                       AND p.quantity <> 0), 0)
                OR $37 < (SELECT count(*) FROM order_attempt a
                           WHERE a.sent_at >= $36 AND a.broker = $9 AND a.account = $10)
                THEN 'CHANGED'
           ELSE '' END AS code
      FROM totals, order_stops($9, $10, $2, $8) AS account_stop,
           market_stops($9, $10, $3, $8) AS market_stop
), new_signal AS (
    INSERT INTO signal (id, strategy_key, symbol, side, reason, decided_at)
    SELECT $1, $2, $3, $4, $5, $6 FROM verdict WHERE code = '' ON CONFLICT DO NOTHING
), new_intent AS (
    INSERT INTO order_intent (
        id, signal_id, intent_type, broker, account, strategy_key, symbol, side, order_type,
        quantity, price, approved_at, expires_at)
    SELECT $7, $1, $8, $9, $10, $2, $3, $4, $11, $12, $13, $14, $15 FROM verdict WHERE code = ''
    ON CONFLICT (signal_id, intent_type, broker, account) DO NOTHING
    RETURNING id
), new_attempt AS (
    INSERT INTO order_attempt (
        id, order_intent_id, attempt_no, broker, account, symbol, identifier, request_json,
        status, sent_at, epoch)
    SELECT $16, id, 1, $9, $10, $3, $17, $18, 'SENT', $27, $38 FROM new_intent
    RETURNING id
), new_event_id AS (
    INSERT INTO outbox_event_id (event_id) SELECT $19 FROM new_attempt
), new_event AS (
    INSERT INTO outbox_event (
        event_id, stream, event_type, aggregate_type, aggregate_id, account, payload_json,
        max_attempts, status, attempt_count, last_attempt_at, locked_by, locked_until)
    SELECT $19, $20, $21, $22, $23, $24, $25::text::jsonb, $26::integer, 'PROCESSING', 1,
           clock_timestamp(), $28, clock_timestamp() + $29::interval
      FROM new_attempt)
SELECT CASE WHEN code = '' AND NOT EXISTS (SELECT FROM new_intent) THEN 'KNOWN'
            ELSE code END AS code
  FROM verdict

-- name: submitted
-- Return the intent that a signal already has in an account.
-- $1 signal, $2 intent type, $3 broker, $4 account
SELECT i.id, i.symbol, i.side, i.reason_code,
       (SELECT a.id FROM order_attempt a WHERE a.order_intent_id = i.id
         ORDER BY a.attempt_no DESC LIMIT 1) AS attempt_id
  FROM order_intent i
 WHERE i.signal_id = $1 AND i.intent_type = $2 AND i.broker = $3 AND i.account = $4

-- name: request_cancel
-- $1 intent, $2 now
UPDATE order_intent
   SET cancel_requested_at = COALESCE(cancel_requested_at, $2), updated_at = clock_timestamp()
 WHERE id = $1

-- name: is_cancel_requested
-- $1 intent
SELECT cancel_requested_at IS NOT NULL FROM order_intent WHERE id = $1

-- name: close_intent
-- End the intent of an attempt whose order has ended. `is_overdue`: its time in force was over when
-- the cancel was requested.
-- $1 attempt, $2 COMPLETED or CANCELED, $3 FILLED or CANCELLED
UPDATE order_intent i
   SET status = $2, reason_code = CASE WHEN $2 = 'CANCELED' THEN $3 ELSE '' END,
       updated_at = clock_timestamp()
  FROM order_attempt a
 WHERE a.id = $1 AND i.id = a.order_intent_id
   AND (i.status = 'CREATED' OR (i.status = 'CANCELED' AND $2 = 'COMPLETED'))
RETURNING i.id, i.strategy_key, i.side, i.quantity,
          COALESCE((a.request_json ->> 'good_until')::timestamptz <= i.cancel_requested_at, false)
              AS is_overdue

-- name: overdue_intents
-- List intents whose order may be open although its time in force is over.
-- $1 broker, $2 account, $3 now
SELECT i.id
  FROM order_intent i
  JOIN order_attempt a ON a.order_intent_id = i.id
                      AND a.status IN ('PREPARED', 'SENT', 'UNKNOWN', 'ACKED')
  LEFT JOIN broker_order o ON o.order_attempt_id = a.id
 WHERE i.broker = $1 AND i.account = $2 AND i.status = 'CREATED'
   AND (o.state IS NULL OR o.state = 'OPEN')
   AND (a.request_json ->> 'good_until')::timestamptz <= $3

-- name: end_intent
-- $1 intent, $2 COMPLETED or CANCELED, $3 reason code
UPDATE order_intent
   SET status = $2, reason_code = $3, updated_at = clock_timestamp()
 WHERE id = $1 AND (status = 'CREATED' OR (status = 'CANCELED' AND $2 = 'COMPLETED'))

-- name: attempt
-- Lock an attempt and return it with its intent.
-- $1 attempt
SELECT a.id, a.order_intent_id, a.attempt_no, a.broker, a.account, a.symbol, a.identifier,
       a.request_json::text AS request, a.status, a.broker_order_id, a.sent_at,
       i.strategy_key, i.intent_type, i.side, i.quantity, i.expires_at, i.cancel_requested_at
  FROM order_attempt a JOIN order_intent i ON i.id = a.order_intent_id
 WHERE a.id = $1
   FOR NO KEY UPDATE OF a

-- name: add_attempt
-- Insert the attempt that replaces an earlier one.
-- $1 attempt, $2 intent, $3 number, $4 broker, $5 account, $6 symbol, $7 client order id,
-- $8 request
INSERT INTO order_attempt (
    id, order_intent_id, attempt_no, broker, account, symbol, identifier, request_json)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)

-- name: send
-- Move an attempt from PREPARED to SENT unless a stop applies, with a synchronous commit.
-- The attempt is locked first, so that a stop set while the statement waits for the lock counts.
-- An attempt of another account is not found, and none while the lease has another epoch.
-- $1 attempt, $2 now, $3 broker, $4 account, $5 epoch
WITH lease AS MATERIALIZED (
    SELECT FROM account WHERE broker = $3 AND account = $4 AND epoch = $5 FOR SHARE),
candidate AS MATERIALIZED (
    SELECT a.id, i.strategy_key, i.intent_type, i.side, i.quantity, i.expires_at,
           i.cancel_requested_at
      FROM order_attempt a JOIN order_intent i ON i.id = a.order_intent_id
     WHERE a.id = $1 AND a.broker = $3 AND a.account = $4
       AND a.status = 'PREPARED' AND i.expires_at > $2 AND i.cancel_requested_at IS NULL
       FOR NO KEY UPDATE OF a)
UPDATE order_attempt a
   SET status = 'SENT', sent_at = $2, epoch = $5, needs_person = false,
       updated_at = clock_timestamp()
  FROM candidate AS c, lease
 WHERE a.id = c.id AND a.status = 'PREPARED'
   AND order_stop(a.broker, a.account, c.strategy_key, c.intent_type) IS NULL
   AND market_stop(a.broker, a.account, a.symbol, c.intent_type) IS NULL
RETURNING a.id, a.order_intent_id, a.attempt_no, a.broker, a.account, a.symbol, a.identifier,
          a.request_json::text AS request, a.status, a.broker_order_id, a.sent_at,
          c.strategy_key, c.intent_type, c.side, c.quantity, c.expires_at,
          c.cancel_requested_at, set_config('synchronous_commit', 'on', true)

-- name: stop_code
-- Return the code of the stop that applies to an attempt, or null.
-- $1 broker, $2 account, $3 strategy, $4 intent type, $5 symbol
SELECT COALESCE(order_stop($1, $2, $3, $4), market_stop($1, $2, $5, $4))

-- name: move_attempt
-- Change the state of an attempt if it is still in one of the given states.
-- $1 attempt, $2 from states, $3 to state, $4 broker order id, $5 error code, $6 error text,
-- $7 next retry at
UPDATE order_attempt
   SET status = $3, broker_order_id = COALESCE($4, broker_order_id), error_code = $5,
       error_message = $6, next_retry_at = COALESCE($7, next_retry_at),
       needs_person = false, updated_at = clock_timestamp()
 WHERE id = $1 AND status = ANY ($2::text[])

-- name: flag_for_operator
-- Flag an unknown attempt for the operator.
-- $1 attempt, $2 reason
UPDATE order_attempt SET needs_person = true, error_message = $2, updated_at = clock_timestamp()
 WHERE id = $1 AND status = 'UNKNOWN' AND NOT needs_person

-- name: live_attempt
-- Return the attempt of an intent that is, or may become, an open order.
-- $1 intent
SELECT a.id
  FROM order_attempt a
  LEFT JOIN broker_order o ON o.order_attempt_id = a.id
 WHERE a.order_intent_id = $1 AND a.status IN ('PREPARED', 'SENT', 'UNKNOWN', 'ACKED')
   AND (o.state IS NULL OR o.state = 'OPEN')

-- name: cancellable
-- Return the account and the order of an acknowledged attempt if it is open.
-- $1 attempt
SELECT a.broker, a.account, a.broker_order_id, o.placed_at, i.cancel_requested_at
  FROM order_attempt a JOIN broker_order o ON o.order_attempt_id = a.id
                       JOIN order_intent i ON i.id = a.order_intent_id
 WHERE a.id = $1 AND a.status = 'ACKED' AND o.state = 'OPEN'

-- name: attempt_of
-- Lock the attempt with a client order id, before its order; say whether another order has it.
-- $1 broker, $2 account, $3 client order id, $4 broker order id
SELECT a.id,
       EXISTS (SELECT FROM broker_order o
                WHERE o.order_attempt_id = a.id AND o.broker_order_id <> $4) AS is_taken
  FROM order_attempt a
 WHERE a.identifier = $3 AND a.broker = $1 AND a.account = $2
   FOR NO KEY UPDATE OF a

-- name: intent_of_order
-- Return an order's attempt and intent, and how much of it no fill has traded yet.
-- $1 broker, $2 account, $3 broker order id
SELECT o.order_attempt_id, i.id AS intent_id, i.strategy_key,
       COALESCE(o.quantity, i.quantity) - o.applied AS remaining
  FROM broker_order o
  LEFT JOIN order_attempt a ON a.id = o.order_attempt_id
  LEFT JOIN order_intent i ON i.id = a.order_intent_id
 WHERE o.broker = $1 AND o.account = $2 AND o.broker_order_id = $3

-- name: expired
-- List attempts that expired before they were sent.
-- $1 broker, $2 account, $3 now
SELECT a.id
  FROM order_attempt a JOIN order_intent i ON i.id = a.order_intent_id
 WHERE a.broker = $1 AND a.account = $2 AND a.status = 'PREPARED' AND i.expires_at <= $3

-- name: unresolved
-- List attempts whose outcome is unknown, or that were sent too long ago without a reply.
-- $1 broker, $2 account, $3 sent before
SELECT a.id, o.broker_order_id
  FROM order_attempt a LEFT JOIN broker_order o ON o.order_attempt_id = a.id
 WHERE a.broker = $1 AND a.account = $2
   AND (a.status = 'UNKNOWN' OR (a.status = 'SENT' AND a.sent_at < $3))
 ORDER BY a.sent_at

-- name: next_unresolved
-- Return when the next attempt is due to be resolved, or null.
-- $1 broker, $2 account, $3 now, $4 send timeout, $5 retry interval
SELECT min(GREATEST($3::timestamptz + $5::interval,
                    CASE status WHEN 'SENT' THEN sent_at + $4::interval END))
  FROM order_attempt
 WHERE broker = $1 AND account = $2 AND status IN ('SENT', 'UNKNOWN') AND NOT needs_person

-- name: count_unknown
-- $1 broker, $2 account, $3 symbol
SELECT count(*) FROM order_attempt
 WHERE broker = $1 AND account = $2 AND symbol = $3 AND status = 'UNKNOWN'

-- name: undecided
-- Return what the orders of attempts without a known outcome may change, until the operator has to
-- decide.
-- $1 broker, $2 account
SELECT a.symbol, i.side, sum(i.quantity) AS quantity
  FROM order_attempt a JOIN order_intent i ON i.id = a.order_intent_id
 WHERE a.broker = $1 AND a.account = $2 AND a.status IN ('SENT', 'UNKNOWN') AND NOT a.needs_person
 GROUP BY a.symbol, i.side

-- name: count_unsettled
-- $1 broker, $2 account
SELECT count(*) FROM order_attempt
 WHERE broker = $1 AND account = $2 AND status IN ('SENT', 'UNKNOWN')

-- name: upsert_order
-- Record an order as its venue reports it. Reports may arrive in any order, so a row only gains
-- facts: states rank OPEN, CANCELLED, FILLED and the highest stays; an order is FILLED once its
-- whole quantity has traded. A market buy by amount that bought nothing has no quantity.
-- $1 broker, $2 account, $3 broker order id, $4 attempt, $5 client order id, $6 symbol, $7 side,
-- $8 type, $9 quantity, $10 price, $11 filled, $12 state, $13 placed at
INSERT INTO broker_order AS o (
    broker, account, broker_order_id, order_attempt_id, origin, identifier, symbol, side,
    order_type, quantity, price, filled, state, placed_at)
VALUES ($1, $2, $3, $4, CASE WHEN $4::uuid IS NULL THEN 'FOREIGN' ELSE 'OURS' END, $5, $6, $7, $8,
        NULLIF($9::numeric, 0), $10, $11,
        CASE WHEN $11::numeric >= NULLIF($9::numeric, 0) THEN 'FILLED' ELSE $12 END, $13)
ON CONFLICT (broker, account, broker_order_id) DO UPDATE
   SET order_attempt_id = COALESCE(o.order_attempt_id, EXCLUDED.order_attempt_id),
       origin = CASE WHEN EXCLUDED.order_attempt_id IS NULL THEN o.origin ELSE 'OURS' END,
       identifier = COALESCE(o.identifier, EXCLUDED.identifier),
       order_type = COALESCE(EXCLUDED.order_type, o.order_type),
       quantity = COALESCE(EXCLUDED.quantity, o.quantity),
       price = COALESCE(EXCLUDED.price, o.price),
       filled = GREATEST(o.filled, EXCLUDED.filled),
       state = CASE
           WHEN GREATEST(o.filled, EXCLUDED.filled) >= COALESCE(EXCLUDED.quantity, o.quantity)
               OR 'FILLED' IN (o.state, EXCLUDED.state) THEN 'FILLED'
           WHEN 'CANCELLED' IN (o.state, EXCLUDED.state) THEN 'CANCELLED'
           ELSE 'OPEN' END,
       placed_at = LEAST(o.placed_at, EXCLUDED.placed_at),
       updated_at = clock_timestamp()
RETURNING order_attempt_id, origin, symbol, side, quantity, filled, applied, state

-- name: insert_order_from_fill
-- Insert a row for an order of which only a fill is known, or lock the existing row.
-- $1 broker, $2 account, $3 broker order id, $4 symbol, $5 side, $6 placed at
INSERT INTO broker_order AS o (broker, account, broker_order_id, origin, symbol, side, placed_at)
VALUES ($1, $2, $3, 'FOREIGN', $4, $5, $6)
ON CONFLICT (broker, account, broker_order_id) DO UPDATE SET updated_at = clock_timestamp()

-- name: complete_filled_order
-- Mark an order FILLED if the last fill completed its quantity, and return it.
-- $1 broker, $2 account, $3 broker order id
UPDATE broker_order
   SET state = CASE WHEN filled >= quantity THEN 'FILLED' ELSE state END
 WHERE broker = $1 AND account = $2 AND broker_order_id = $3
RETURNING order_attempt_id, origin, symbol, side, quantity, filled, applied, state

-- name: external_order
-- Insert an adopted holding as an order that has ended.
-- $1 broker, $2 account, $3 broker order id, $4 symbol, $5 side, $6 quantity, $7 placed at
INSERT INTO broker_order (
    broker, account, broker_order_id, origin, symbol, side, quantity, placed_at)
VALUES ($1, $2, $3, 'EXTERNAL', $4, $5, $6, $7)

-- name: open_orders
-- $1 broker, $2 account
SELECT broker_order_id FROM broker_order WHERE broker = $1 AND account = $2 AND state = 'OPEN'

-- name: symbols_on_order
-- $1 broker, $2 account
SELECT symbol FROM order_attempt
 WHERE broker = $1 AND account = $2 AND status IN ('PREPARED', 'SENT', 'UNKNOWN', 'THROTTLED')
 UNION
SELECT symbol FROM broker_order WHERE broker = $1 AND account = $2 AND state = 'OPEN'
 ORDER BY symbol

-- name: find_orders
-- $1 broker, $2 account, $3 broker order ids
SELECT o.broker_order_id, o.state, o.filled, o.applied, o.quantity, o.identifier, o.origin,
       a.status AS attempt_status
  FROM broker_order o LEFT JOIN order_attempt a ON a.id = o.order_attempt_id
 WHERE o.broker = $1 AND o.account = $2 AND o.broker_order_id = ANY ($3)

-- name: known_orders
-- List orders of a symbol that cannot be an attempt's: they belong to others, or were recorded
-- before it was created. Both times are the database's.
-- $1 broker, $2 account, $3 symbol, $4 attempt
SELECT o.broker_order_id
  FROM broker_order o
 WHERE o.broker = $1 AND o.account = $2 AND o.symbol = $3
   AND (o.order_attempt_id <> $4
        OR o.created_at < (SELECT a.created_at FROM order_attempt a WHERE a.id = $4))

-- name: count_rivals
-- Count the other attempts without a known outcome whose order would look like this attempt's.
-- $1 attempt
SELECT count(*)
  FROM order_attempt a
  JOIN order_intent i ON i.id = a.order_intent_id
  JOIN order_attempt mine ON mine.id = $1
  JOIN order_intent my ON my.id = mine.order_intent_id
 WHERE a.broker = mine.broker AND a.account = mine.account AND a.symbol = mine.symbol
   AND a.status IN ('SENT', 'UNKNOWN')
   AND a.id <> mine.id
   AND (i.side, i.order_type, i.quantity) = (my.side, my.order_type, my.quantity)
   AND i.price IS NOT DISTINCT FROM my.price

-- name: orders_contradicting_attempt
-- List orders at the venue whose attempt says that none was placed. One without a client order id
-- is such an attempt's when it fits it, was recorded within an hour of its creation, and the symbol
-- has no attempt without an outcome, whose order it may be.
-- $1 broker, $2 account, $3 broker order ids
SELECT o.broker_order_id, a.id, a.status
  FROM broker_order o
  JOIN order_attempt a ON a.id = o.order_attempt_id
 WHERE o.broker = $1 AND o.account = $2 AND o.broker_order_id = ANY ($3)
   AND a.status NOT IN ('SENT', 'UNKNOWN', 'ACKED')
UNION ALL
SELECT o.broker_order_id, a.id, a.status
  FROM broker_order o
  JOIN order_attempt a ON a.broker = o.broker AND a.account = o.account AND a.symbol = o.symbol
                      AND a.status = 'ABSENT'
                      AND o.created_at > a.created_at
                      AND o.created_at < a.created_at + interval '1 hour'
  JOIN order_intent i ON i.id = a.order_intent_id
 WHERE o.broker = $1 AND o.account = $2 AND o.broker_order_id = ANY ($3)
   AND o.origin = 'FOREIGN' AND o.identifier IS NULL
   AND (i.side, i.order_type, i.quantity) = (o.side, o.order_type, o.quantity)
   AND i.price IS NOT DISTINCT FROM o.price
   AND NOT EXISTS (SELECT FROM broker_order other WHERE other.order_attempt_id = a.id)
   AND NOT EXISTS (SELECT FROM order_attempt open
                    WHERE open.broker = o.broker AND open.account = o.account
                      AND open.symbol = o.symbol AND open.status IN ('SENT', 'UNKNOWN'))

-- name: insert_fill
-- Insert a fill once; it is not part of a position yet.
-- $1 broker, $2 account, $3 trade id, $4 broker order id, $5 symbol, $6 side, $7 quantity,
-- $8 price, $9 fee, $10 traded at
INSERT INTO fill (
    broker, account, trade_id, broker_order_id, symbol, side, quantity, price, fee, traded_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (broker, account, trade_id) DO NOTHING

-- name: get_fill
-- $1 broker, $2 account, $3 trade id
SELECT broker_order_id, quantity, price
  FROM fill WHERE broker = $1 AND account = $2 AND trade_id = $3

-- name: count_fills
-- Count fills in the position and store what each realised; a trigger moves the quantity.
-- $1 broker, $2 account, $3 trade ids, $4 realised by each
UPDATE fill f
   SET counted = true, realised_pnl = n.realised
  FROM unnest($3::text[], $4::numeric[]) AS n (trade_id, realised)
 WHERE f.broker = $1 AND f.account = $2 AND f.trade_id = n.trade_id

-- name: counted_fills
-- $1 broker, $2 account, $3 symbol
SELECT trade_id, broker_order_id, symbol, side, quantity, price, fee, traded_at
  FROM fill
 WHERE broker = $1 AND account = $2 AND symbol = $3 AND counted

-- name: waiting_fills
-- List fills of our orders that are not in a position yet.
-- $1 broker, $2 account, $3 symbol
SELECT f.trade_id, f.broker_order_id, f.symbol, f.side, f.quantity, f.price, f.fee, f.traded_at
  FROM fill f JOIN broker_order o USING (broker, account, broker_order_id)
 WHERE f.broker = $1 AND f.account = $2 AND f.symbol = $3
   AND NOT f.counted AND o.origin <> 'FOREIGN'
 ORDER BY f.traded_at, f.trade_id

-- name: missing_fills
-- Return those of the given trade ids that the ledger does not have.
-- $1 broker, $2 account, $3 trade ids
SELECT t.trade_id
  FROM unnest($3::text[]) AS t (trade_id)
 WHERE NOT EXISTS (SELECT FROM fill f
                    WHERE f.broker = $1 AND f.account = $2 AND f.trade_id = t.trade_id)

-- name: trades_both_ways
-- Return whether a symbol has pending orders of both sides: their fills may cancel each other out.
-- $1 broker, $2 account
SELECT EXISTS (
    SELECT FROM (SELECT symbol, side FROM order_intent
                  WHERE broker = $1 AND account = $2 AND status = 'CREATED'
                  UNION
                 SELECT symbol, side FROM broker_order
                  WHERE broker = $1 AND account = $2 AND applied < filled) p
     GROUP BY symbol HAVING count(*) > 1)

-- name: fills_since
-- $1 broker, $2 account, $3 since, $4 trade ids to include
SELECT f.trade_id, f.quantity, f.price, f.counted, o.origin
  FROM fill f JOIN broker_order o USING (broker, account, broker_order_id)
 WHERE f.broker = $1 AND f.account = $2 AND o.origin <> 'EXTERNAL'
   AND (f.traded_at >= $3 OR f.trade_id = ANY ($4))

-- name: lock_position
-- Lock the position of a symbol; insert a flat one if there is none.
-- $1 broker, $2 account, $3 symbol, $4 may be negative
INSERT INTO position AS p (broker, account, symbol, allows_short) VALUES ($1, $2, $3, $4)
ON CONFLICT (broker, account, symbol) DO UPDATE SET allows_short = p.allows_short OR $4
RETURNING quantity, average_price, realised_pnl, fees, opened_at, last_traded_at, last_trade_id,
          allows_short

-- name: set_position
-- Store what the fills amount to; the quantity must already be the one that the fills made.
-- $1 broker, $2 account, $3 symbol, $4 quantity, $5 average price, $6 realised, $7 fees,
-- $8 opened at, $9 last traded at, $10 last trade id
UPDATE position
   SET average_price = $5, realised_pnl = $6, fees = $7, opened_at = $8, last_traded_at = $9,
       last_trade_id = $10, updated_at = clock_timestamp()
 WHERE broker = $1 AND account = $2 AND symbol = $3 AND quantity = $4

-- name: get_position
-- $1 broker, $2 account, $3 symbol
SELECT quantity, average_price, realised_pnl, fees, opened_at
  FROM position WHERE broker = $1 AND account = $2 AND symbol = $3

-- name: positions
-- $1 broker and $2 account, or null for all
SELECT broker, account, symbol, quantity, average_price, realised_pnl, fees, opened_at, updated_at,
       COALESCE((SELECT n.name FROM instrument n WHERE n.symbol = p.symbol
                  ORDER BY n.last_seen_at DESC LIMIT 1), '') AS name
  FROM position p
 WHERE $1::text IS NULL OR (broker = $1 AND account = $2)
 ORDER BY broker, account, symbol

-- name: recent_fills
-- List positions with the signed quantities of their latest fills, the newest first.
-- $1 broker, $2 account, $3 symbols, $4 how long ago they were received at most
SELECT p.symbol, p.quantity,
       ARRAY(SELECT CASE f.side WHEN 'BUY' THEN f.quantity ELSE -f.quantity END
               FROM fill f
              WHERE f.broker = $1 AND f.account = $2 AND f.symbol = p.symbol AND f.counted
                AND f.traded_at > clock_timestamp() - interval '1 day'
                AND f.received_at >= clock_timestamp() - $4::interval
              ORDER BY f.received_at DESC, f.traded_at DESC, f.trade_id DESC) AS fills
  FROM position p
 WHERE p.broker = $1 AND p.account = $2 AND p.symbol = ANY($3)

-- name: half_sold
-- List positions with an exit of the stops that sold something, or may still, since the position
-- last grew. The order of an exit is stored before it is sent.
-- $1 broker, $2 account
SELECT p.symbol
  FROM position p
 WHERE p.broker = $1 AND p.account = $2 AND p.quantity <> 0
   AND EXISTS (
        SELECT FROM order_intent i
         WHERE i.broker = p.broker AND i.account = p.account AND i.symbol = p.symbol
           AND i.intent_type IN ('EXIT_MAE', 'EXIT_VOLATILITY')
           AND i.created_at > COALESCE((
                SELECT max(f.received_at) FROM fill f
                 WHERE f.broker = p.broker AND f.account = p.account AND f.symbol = p.symbol
                   AND f.counted
                   AND f.side = CASE WHEN p.quantity > 0 THEN 'BUY' ELSE 'SELL' END), '-infinity')
           AND (i.status IN ('CREATED', 'COMPLETED') OR EXISTS (
                SELECT FROM order_attempt a JOIN broker_order o ON o.order_attempt_id = a.id
                 WHERE a.order_intent_id = i.id AND o.applied > 0)))

-- name: baseline
-- $1 broker, $2 account, or nulls for all
SELECT broker, account, symbol, quantity, average_price, seen_at
  FROM baseline_holding
 WHERE $1::text IS NULL OR (broker = $1 AND account = $2)
 ORDER BY broker, symbol

-- name: set_baseline
-- $1 broker, $2 account, $3 symbol, $4 quantity, $5 average price, $6 now
INSERT INTO baseline_holding AS b (
    broker, account, symbol, quantity, average_price, seen_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $6)
ON CONFLICT (broker, account, symbol) DO UPDATE
   SET quantity = $4, average_price = $5, updated_at = $6

-- name: remove_baseline
-- $1 broker, $2 account, $3 symbol
DELETE FROM baseline_holding WHERE broker = $1 AND account = $2 AND symbol = $3
RETURNING quantity, average_price

-- name: reduce_baseline
-- Take a quantity out of the baseline, at most what it has.
-- $1 broker, $2 account, $3 symbol, $4 quantity
WITH gone AS (
    DELETE FROM baseline_holding
     WHERE broker = $1 AND account = $2 AND symbol = $3 AND quantity <= $4)
UPDATE baseline_holding SET quantity = quantity - $4
 WHERE broker = $1 AND account = $2 AND symbol = $3 AND quantity > $4

-- name: mark_baseline
-- Record the first reading of an account's holdings; inserts nothing at a later one.
-- $1 broker, $2 account, $3 now
INSERT INTO account_baseline (broker, account, taken_at) VALUES ($1, $2, $3)
ON CONFLICT DO NOTHING

-- name: traded_symbols
-- Return those of the given symbols that QTS holds, or has ordered lately.
-- $1 broker, $2 account, $3 symbols, $4 how long an order counts
SELECT s.symbol
  FROM unnest($3::text[]) AS s (symbol)
 WHERE EXISTS (SELECT FROM position p
                WHERE p.broker = $1 AND p.account = $2 AND p.symbol = s.symbol
                  AND p.quantity <> 0)
    OR EXISTS (SELECT FROM order_intent i
                WHERE i.broker = $1 AND i.account = $2 AND i.symbol = s.symbol
                  AND (i.status = 'CREATED' OR i.created_at > clock_timestamp() - $4::interval))

-- name: last_holdings
-- $1 broker, $2 account
SELECT holdings FROM account_snapshot WHERE broker = $1 AND account = $2
 ORDER BY taken_at DESC, id DESC LIMIT 1

-- name: listed_symbol
-- Return whether the venue of a broker lists the symbol; any venue, for the paper broker.
-- $1 symbol, $2 broker
SELECT EXISTS (SELECT FROM instrument WHERE symbol = $1 AND $2::text IN (venue, 'paper'))

-- name: ledger_symbols
-- List the symbols of orders, stop orders, positions and suspensions.
-- $1 broker and $2 account, or null for all
SELECT symbol FROM position WHERE $1::text IS NULL OR (broker = $1 AND account = $2)
 UNION
SELECT symbol FROM order_intent WHERE $1::text IS NULL OR (broker = $1 AND account = $2)
 UNION
SELECT symbol FROM broker_order WHERE $1::text IS NULL OR (broker = $1 AND account = $2)
 UNION
SELECT proposal ->> 'symbol'
  FROM stop_order
 WHERE ($1::text IS NULL OR (broker = $1 AND account = $2)) AND triggered_at IS NULL
 UNION
SELECT symbol
  FROM market_state
 WHERE ($1::text IS NULL OR (broker = $1 AND account = $2))
   AND trade_status = 'SUSPENDED' AND symbol <> '*'
 ORDER BY symbol

-- name: suspend_market
-- Suspend a symbol. A manual suspension or a venue block keeps its reason; a freeze replaces a
-- manual suspension.
-- $1 broker, $2 account, $3 symbol, $4 reason code, $5 detail, $6 now
INSERT INTO market_state AS m (
    broker, account, symbol, trade_status, reason_code, detail, suspended_at)
VALUES ($1, $2, $3, 'SUSPENDED', $4, $5, $6)
ON CONFLICT (broker, account, symbol) DO UPDATE
   SET trade_status = 'SUSPENDED', reason_code = $4, detail = $5, suspended_at = $6,
       updated_at = clock_timestamp()
 WHERE m.trade_status = 'ACTIVE' OR (m.reason_code = 'UNKNOWN' AND $4 <> 'UNKNOWN')
    OR (m.reason_code = 'BY_HAND' AND $4 = 'FROZEN')

-- name: resume_market
-- $1 broker, $2 account, $3 symbol, $4 only if suspended for this reason, or null
UPDATE market_state
   SET trade_status = 'ACTIVE', reason_code = '', detail = '', suspended_at = NULL,
       updated_at = clock_timestamp()
 WHERE broker = $1 AND account = $2 AND symbol = $3 AND trade_status = 'SUSPENDED'
   AND ($4::text IS NULL OR reason_code = $4)

-- name: resolved_markets
-- List symbols that were suspended for an unknown outcome and have none left.
-- $1 broker, $2 account
SELECT symbol
  FROM market_state m
 WHERE broker = $1 AND account = $2 AND trade_status = 'SUSPENDED' AND reason_code = 'UNKNOWN'
   AND NOT EXISTS (SELECT FROM order_attempt a
                    WHERE a.broker = $1 AND a.account = $2
                      AND a.symbol = m.symbol AND a.status = 'UNKNOWN')

-- name: lock_market
-- $1 broker, $2 account, $3 symbol
SELECT FROM market_state WHERE broker = $1 AND account = $2 AND symbol = $3 FOR UPDATE

-- name: reconcile_since
-- Return the start of the period to reconcile: the oldest incomplete order or attempt, or the mark.
-- $1 broker, $2 account
SELECT LEAST(
    (SELECT reconciled_at FROM reconcile_mark WHERE broker = $1 AND account = $2),
    (SELECT min(placed_at) FROM broker_order
      WHERE broker = $1 AND account = $2 AND origin <> 'EXTERNAL'
        AND (state = 'OPEN' OR applied < filled)),
    (SELECT min(sent_at) FROM order_attempt
      WHERE broker = $1 AND account = $2 AND status IN ('SENT', 'UNKNOWN'))) AS since,
    EXISTS (SELECT FROM reconcile_mark WHERE broker = $1 AND account = $2) AS has_mark

-- name: set_reconcile_mark
-- $1 broker, $2 account, $3 reconciled up to
INSERT INTO reconcile_mark AS m (broker, account, reconciled_at) VALUES ($1, $2, $3)
ON CONFLICT (broker, account) DO UPDATE
   SET reconciled_at = GREATEST(m.reconciled_at, EXCLUDED.reconciled_at)

-- name: snapshot
-- $1 broker, $2 account, $3 taken at, $4 cash, $5 holdings
INSERT INTO account_snapshot (broker, account, taken_at, cash, holdings)
VALUES ($1, $2, $3, $4, $5)

-- name: account_state
-- Read the account state at a broker in one snapshot. Numbers are text so that they stay exact.
-- $1 broker, $2 account, $3 start of the trading day, $4 now, $5 a moment shortly before it
WITH held AS (
    SELECT symbol, quantity, average_price
      FROM position WHERE broker = $1 AND account = $2 AND quantity <> 0
), pending AS (
    -- In flight and not in a position yet: an unknown outcome counts in full, and an order that the
    -- venue reports as filled counts until its last fill has arrived.
    SELECT i.symbol, i.side, i.quantity - COALESCE(o.applied, 0) AS remaining, i.price,
           a.status = 'UNKNOWN' AS unknown
      FROM order_intent i
      JOIN order_attempt a ON a.order_intent_id = i.id
                          AND a.status IN ('PREPARED', 'SENT', 'UNKNOWN', 'ACKED')
      LEFT JOIN broker_order o ON o.broker = a.broker AND o.account = a.account
                              AND o.broker_order_id = a.broker_order_id
     WHERE i.broker = $1 AND i.account = $2 AND i.status = 'CREATED'
       AND i.quantity > COALESCE(o.applied, 0)
    UNION ALL  -- not OR: each half uses an index that does not grow with past orders
    SELECT i.symbol, i.side, o.filled - o.applied, i.price, a.status = 'UNKNOWN'
      FROM broker_order o
      JOIN order_attempt a ON a.broker = o.broker AND a.account = o.account
                          AND a.broker_order_id = o.broker_order_id
                          AND a.status IN ('PREPARED', 'SENT', 'UNKNOWN', 'ACKED')
      JOIN order_intent i ON i.id = a.order_intent_id AND i.status <> 'CREATED'
     WHERE o.broker = $1 AND o.account = $2 AND o.applied < o.filled
), suspended AS (
    SELECT symbol, reason_code = 'FROZEN' AS frozen
      FROM market_state WHERE broker = $1 AND account = $2 AND trade_status = 'SUSPENDED'
)
SELECT (SELECT COALESCE(json_agg(json_build_array(symbol, quantity::text, average_price::text)), '[]')
          FROM held) AS held,
       (SELECT COALESCE(json_agg(json_build_array(
                   symbol, side, remaining::text, price::text, unknown)), '[]')
          FROM pending) AS pending,
       (SELECT COALESCE(json_agg(symbol) FILTER (WHERE NOT frozen), '[]') FROM suspended)
           AS suspended,
       (SELECT COALESCE(json_agg(symbol) FILTER (WHERE frozen), '[]') FROM suspended) AS frozen,
       (SELECT count(*) FROM order_attempt
         WHERE sent_at >= $3 AND broker = $1 AND account = $2) AS orders_today,
       (SELECT COALESCE(json_object_agg(strategy_key, orders), '{}')
          FROM (SELECT i.strategy_key, count(*) AS orders
                  FROM order_attempt a JOIN order_intent i ON i.id = a.order_intent_id
                 WHERE a.sent_at >= $3 AND a.broker = $1 AND a.account = $2
                 GROUP BY i.strategy_key) AS today) AS orders_of,
       (SELECT count(*) FROM order_attempt
         WHERE sent_at >= $4::timestamptz - interval '1 minute' AND broker = $1 AND account = $2)
           AS orders_last_minute,
       (SELECT count(*) FROM order_attempt
         WHERE sent_at >= $5 AND broker = $1 AND account = $2) AS latest_orders,
       COALESCE((SELECT sum(realised_pnl - fee) FROM fill
         WHERE traded_at >= $3 AND broker = $1 AND account = $2 AND counted), 0) AS earned

-- name: owned_fills
-- List fills with the strategy and type of their order, of every symbol with a fill that was traded
-- or received since $3, from its last flat moment before that on.
-- $1 broker, $2 account, $3 since, $4 traded before
WITH fresh AS (
    SELECT symbol, traded_at FROM fill
     WHERE broker = $1 AND account = $2 AND traded_at < $4 AND traded_at >= $3
    UNION ALL  -- not OR: each half uses an index
    SELECT symbol, traded_at FROM fill
     WHERE broker = $1 AND account = $2 AND traded_at < $3
       AND traded_at >= $3::timestamptz - interval '7 days' AND received_at >= $3
), line AS (
    SELECT f.trade_id, f.broker_order_id, f.symbol, f.side, f.quantity, f.price, f.fee, f.traded_at,
           f.received_at, f.counted, f.realised_pnl,
           sum(CASE WHEN NOT f.counted THEN 0 WHEN f.side = 'BUY' THEN f.quantity
                    ELSE -f.quantity END)
               OVER (PARTITION BY f.symbol ORDER BY f.traded_at, f.trade_id) AS held
      FROM fill f
     WHERE f.broker = $1 AND f.account = $2 AND f.traded_at < $4
       AND f.symbol IN (SELECT symbol FROM fresh)
), flat AS (  -- once for each symbol: a subquery for each fill reads all fills again
    SELECT symbol, max(traded_at) AS at FROM line
     WHERE held = 0 AND traded_at < LEAST($3, (SELECT min(traded_at) FROM fresh))
     GROUP BY symbol
)
SELECT l.*, COALESCE(i.strategy_key, '') AS strategy, COALESCE(i.intent_type, '') AS intent_type
  FROM line l
  JOIN broker_order o ON o.broker = $1 AND o.account = $2 AND o.broker_order_id = l.broker_order_id
  LEFT JOIN flat ON flat.symbol = l.symbol
  LEFT JOIN order_attempt a ON a.id = o.order_attempt_id
  LEFT JOIN order_intent i ON i.id = a.order_intent_id
 WHERE l.traded_at >= COALESCE(flat.at, '-infinity')
 ORDER BY l.traded_at, l.trade_id

-- name: later_fills
-- List the counted fills of an account after one, with the strategy and type of their order, and
-- how many were traded or received since $3.
-- $1 broker, $2 account, $3 since, $4 traded before, $5 time and $6 id of the last known fill
SELECT f.trade_id, f.symbol, f.side, f.quantity, f.fee, f.traded_at, f.realised_pnl, t.count,
       COALESCE(i.strategy_key, '') AS strategy, COALESCE(i.intent_type, '') AS intent_type
  FROM (SELECT count(*) FROM fill
         WHERE broker = $1 AND account = $2 AND counted AND traded_at < $4
           AND traded_at >= $3::timestamptz - interval '7 days'
           AND (traded_at >= $3 OR received_at >= $3)) AS t
  LEFT JOIN (fill f
             JOIN broker_order o USING (broker, account, broker_order_id)
             LEFT JOIN order_attempt a ON a.id = o.order_attempt_id
             LEFT JOIN order_intent i ON i.id = a.order_intent_id)
    ON f.broker = $1 AND f.account = $2 AND f.counted AND f.traded_at < $4
   AND (f.traded_at, f.trade_id) > ($5, $6)
 ORDER BY f.traded_at, f.trade_id

-- name: order_latency
-- Return p50, p99 and maximum of the milliseconds from decision to request, and their count; a
-- stop order, whose wait is no latency, is left out.
-- $1 brokers and $2 accounts, in pairs, $3 sent since, $4 sent before, or null
SELECT percentile_disc(ARRAY[0.5, 0.99, 1.0]) WITHIN GROUP
           (ORDER BY extract(epoch FROM a.sent_at - s.decided_at) * 1000), count(*)
  FROM order_attempt a
  JOIN order_intent i ON i.id = a.order_intent_id
  JOIN signal s ON s.id = i.signal_id
 WHERE (a.broker, a.account) IN (SELECT * FROM unnest($1::text[], $2::text[])) AND a.attempt_no = 1
   AND a.sent_at >= $3 AND ($4::timestamptz IS NULL OR a.sent_at < $4)
   AND NOT EXISTS (SELECT FROM stop_order w WHERE w.id = s.id)

-- name: list_orders
-- List intents with their latest attempt and its order, and stop orders that wait, newest first.
-- $1 attempt state or WAITING, $2 symbol, $3 open ones only, $4 limit, $5 intent, $6 broker and
-- $7 account, $8 time and $9 intent that they come before; null matches all
(
SELECT i.id AS intent_id, i.created_at, i.strategy_key, i.intent_type, i.broker, i.account,
       i.symbol, i.side, i.order_type, i.quantity, i.price, i.status, i.reason_code,
       a.id AS attempt_id, a.attempt_no, a.status AS attempt_state, NULLIF(a.error_message, '') AS error,
       COALESCE(a.needs_person, false) AS needs_person, a.broker_order_id,
       o.state AS order_state, COALESCE(o.applied, 0) AS filled,
       (a.request_json ->> 'good_until')::timestamptz AS good_until,
       COALESCE((SELECT n.name FROM instrument n WHERE n.symbol = i.symbol
                  ORDER BY n.last_seen_at DESC LIMIT 1), '') AS name, NULL::numeric AS trigger
  FROM order_intent i
  LEFT JOIN LATERAL (
        SELECT * FROM order_attempt a WHERE a.order_intent_id = i.id
         ORDER BY a.attempt_no DESC LIMIT 1) a ON true
  LEFT JOIN broker_order o ON o.order_attempt_id = a.id
 WHERE ($1::text IS NULL OR a.status = $1) AND ($2::text IS NULL OR i.symbol = $2)
   AND (NOT $3 OR i.status = 'CREATED') AND ($5::uuid IS NULL OR i.id = $5)
   AND ($6::text IS NULL OR (i.broker = $6 AND i.account = $7))
   AND ($8::timestamptz IS NULL OR (i.created_at, i.id) < ($8, $9::uuid))
 ORDER BY i.created_at DESC, i.id DESC
 LIMIT $4
)
UNION ALL
(
SELECT w.id, w.created_at, w.strategy_key, w.proposal ->> 'intent_type', w.broker, w.account,
       w.proposal ->> 'symbol', w.proposal ->> 'side', w.proposal ->> 'type',
       (w.proposal ->> 'quantity')::numeric, (w.proposal ->> 'price')::numeric, 'WAITING', '',
       NULL, NULL, NULL, NULL, false, NULL, NULL, 0, w.good_until,
       COALESCE((SELECT n.name FROM instrument n WHERE n.symbol = w.proposal ->> 'symbol'
                  ORDER BY n.last_seen_at DESC LIMIT 1), ''),
       (w.proposal ->> 'trigger')::numeric
  FROM stop_order w
 WHERE w.triggered_at IS NULL AND ($1::text IS NULL OR $1 = 'WAITING')
   AND NOT EXISTS (SELECT FROM order_intent t WHERE t.signal_id = w.id
                      AND t.broker = w.broker AND t.account = w.account)
   AND ($2::text IS NULL OR w.proposal ->> 'symbol' = $2) AND ($5::uuid IS NULL OR w.id = $5)
   AND ($6::text IS NULL OR (w.broker = $6 AND w.account = $7))
   AND ($8::timestamptz IS NULL OR (w.created_at, w.id) < ($8, $9::uuid))
 ORDER BY w.created_at DESC, w.id DESC
 LIMIT $4
)
 ORDER BY created_at DESC, intent_id DESC
 LIMIT $4

-- name: order_terms
-- Return whose order it is and how it was requested.
-- $1 intent, $2 broker, $3 account
SELECT i.strategy_key, i.intent_type, s.reason, a.request_json::text AS request
  FROM order_intent i
  JOIN signal s ON s.id = i.signal_id
  JOIN order_attempt a ON a.order_intent_id = i.id
 WHERE i.id = $1 AND i.broker = $2 AND i.account = $3
 ORDER BY a.attempt_no DESC
 LIMIT 1

-- name: show_attempts
-- $1 intent
SELECT id, attempt_no, status, identifier, broker_order_id, error_code, error_message, sent_at,
       next_retry_at, needs_person, updated_at
  FROM order_attempt WHERE order_intent_id = $1 ORDER BY attempt_no

-- name: show_fills
-- $1 intent
SELECT f.trade_id, f.broker_order_id, f.quantity, f.price, f.fee, f.realised_pnl, f.counted,
       f.traded_at
  FROM fill f
  JOIN broker_order o USING (broker, account, broker_order_id)
  JOIN order_attempt a ON a.id = o.order_attempt_id
 WHERE a.order_intent_id = $1
 ORDER BY f.traded_at, f.trade_id

-- name: manual_command
-- $1 command
SELECT id, broker, account, request, actor, reason, state, result, expires_at,
       started_at IS NOT NULL AS is_repeated, expires_at <= clock_timestamp() AS is_late
  FROM manual_command WHERE id = $1

-- name: add_manual_command
-- Return null when the id is known.
-- $1 command, $2 broker, $3 account, $4 request, $5 actor, $6 reason, $7 action, $8 until its
-- deadline
INSERT INTO manual_command (id, broker, account, request, actor, reason, action_id, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp() + $8::interval)
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: start_manual_command
-- Take a command of an account that is in time, or that a run has started before.
-- $1 command, $2 broker, $3 account
WITH before AS (
    SELECT id, started_at IS NOT NULL AS is_repeated FROM manual_command
     WHERE id = $1 AND broker = $2 AND account = $3
       AND (state = 'STARTED' OR (state = 'REQUESTED' AND expires_at > clock_timestamp()))
       FOR UPDATE)
UPDATE manual_command m
   SET state = 'STARTED', started_at = COALESCE(started_at, clock_timestamp())
  FROM before WHERE m.id = before.id
RETURNING m.id, m.request, m.actor, m.reason, m.state, m.result, m.expires_at, before.is_repeated,
          m.expires_at <= clock_timestamp() AS is_late

-- name: end_manual_command
-- End a command that is in a state, and its row in the log of actions.
-- $1 command, $2 from state, $3 to state, $4 result, $5 message
WITH ended AS (
    UPDATE manual_command SET state = $3, result = $4, ended_at = clock_timestamp()
     WHERE id = $1 AND state = $2
    RETURNING action_id)
UPDATE dashboard_action a
   SET outcome = CASE WHEN $3::text IN ('DONE', 'REFUSED') THEN $3 ELSE 'FAILED' END, message = $5
  FROM ended
 WHERE a.id = ended.action_id AND a.outcome = 'BEGUN'

-- name: open_intents
-- List intents whose order is, or may become, open, and stop orders that wait.
-- $1 broker, $2 account, $3 symbol or null
SELECT i.id, i.symbol, i.created_at
  FROM order_intent i
  JOIN order_attempt a ON a.order_intent_id = i.id
                      AND a.status IN ('PREPARED', 'SENT', 'UNKNOWN', 'ACKED')
  LEFT JOIN broker_order o ON o.order_attempt_id = a.id
 WHERE i.broker = $1 AND i.account = $2 AND i.status = 'CREATED'
   AND ($3::text IS NULL OR i.symbol = $3) AND (o.state IS NULL OR o.state = 'OPEN')
 UNION ALL
SELECT w.id, w.proposal ->> 'symbol', w.created_at
  FROM stop_order w
 WHERE w.broker = $1 AND w.account = $2 AND w.triggered_at IS NULL
   AND NOT EXISTS (SELECT FROM order_intent t WHERE t.signal_id = w.id
                      AND t.broker = w.broker AND t.account = w.account)
   AND ($3::text IS NULL OR w.proposal ->> 'symbol' = $3)
 ORDER BY created_at

-- name: waiting_stop_order
-- Read the account and the symbol of a stop order that waits.
-- $1 stop order
SELECT broker, account, proposal ->> 'symbol' AS symbol
  FROM stop_order w
 WHERE id = $1 AND triggered_at IS NULL
   AND NOT EXISTS (SELECT FROM order_intent t WHERE t.signal_id = w.id
                      AND t.broker = w.broker AND t.account = w.account)

-- name: intents_of_signals
-- $1 broker, $2 account, $3 signals
SELECT id FROM order_intent
 WHERE signal_id = ANY ($3::uuid[]) AND broker = $1 AND account = $2
 ORDER BY created_at
