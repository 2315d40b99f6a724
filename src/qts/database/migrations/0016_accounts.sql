-- Accounts: an order, a fill, a position, a suspension, a switch, the fail-safe and a command belong
-- to one account at one broker. Two accounts on one database share nothing of these.
--
--   account   every account that was ever opened, and who holds its lock
--
-- Rows from before have the account '' until `account_open` moves them: orders, fills and positions
-- to the first account that is opened at their broker, switches and fail-safe (broker '') to the
-- first account that is not live. A live account inherits neither: it starts switched off.

CREATE TABLE account (
    broker    text        NOT NULL CHECK (broker <> ''),
    account   text        NOT NULL CHECK (account <> ''),  -- a digest, not the number
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    epoch     bigint      NOT NULL DEFAULT 0,  -- counts the runs that held the lock
    host      text        NOT NULL DEFAULT '', -- of the last run that held the lock
    pid       integer     NOT NULL DEFAULT 0,
    home      text        NOT NULL DEFAULT '',
    held_at   timestamptz,                     -- since when it holds, or held, the lock
    PRIMARY KEY (broker, account)
);

-- --- orders -------------------------------------------------------------------------------------

ALTER TABLE order_intent     ADD COLUMN account text NOT NULL DEFAULT '';
ALTER TABLE order_attempt    ADD COLUMN account text NOT NULL DEFAULT '';
ALTER TABLE broker_order     ADD COLUMN account text NOT NULL DEFAULT '';
ALTER TABLE fill             ADD COLUMN account text NOT NULL DEFAULT '';
ALTER TABLE position         ADD COLUMN account text NOT NULL DEFAULT '';
ALTER TABLE market_state     ADD COLUMN account text NOT NULL DEFAULT '';
ALTER TABLE account_snapshot ADD COLUMN account text NOT NULL DEFAULT '';
ALTER TABLE reconcile_mark   ADD COLUMN account text NOT NULL DEFAULT '';
-- A new row has to name its account.
ALTER TABLE order_intent     ALTER COLUMN account DROP DEFAULT;
ALTER TABLE order_attempt    ALTER COLUMN account DROP DEFAULT;
ALTER TABLE broker_order     ALTER COLUMN account DROP DEFAULT;
ALTER TABLE fill             ALTER COLUMN account DROP DEFAULT;
ALTER TABLE position         ALTER COLUMN account DROP DEFAULT;
ALTER TABLE market_state     ALTER COLUMN account DROP DEFAULT;
ALTER TABLE account_snapshot ALTER COLUMN account DROP DEFAULT;
ALTER TABLE reconcile_mark   ALTER COLUMN account DROP DEFAULT;

-- The same decision has the same signal in each account, and one order in each.
ALTER TABLE order_intent DROP CONSTRAINT order_intent_signal_id_intent_type_key;
ALTER TABLE order_intent ADD UNIQUE (signal_id, intent_type, broker, account);
DROP INDEX order_intent_open;
CREATE INDEX order_intent_open ON order_intent (broker, account, symbol) WHERE status = 'CREATED';
DROP TRIGGER order_intent_stays ON order_intent;
CREATE TRIGGER order_intent_stays AFTER UPDATE ON order_intent FOR EACH ROW
    WHEN ((OLD.id, OLD.signal_id, OLD.intent_type, OLD.broker, OLD.symbol, OLD.side,
           OLD.order_type, OLD.quantity, OLD.price, OLD.expires_at)
        IS DISTINCT FROM (NEW.id, NEW.signal_id, NEW.intent_type, NEW.broker, NEW.symbol, NEW.side,
           NEW.order_type, NEW.quantity, NEW.price, NEW.expires_at)
        OR OLD.account NOT IN ('', NEW.account))
    EXECUTE FUNCTION orders_refuse('another order');

DROP INDEX order_attempt_order;
CREATE UNIQUE INDEX order_attempt_order ON order_attempt (broker, account, broker_order_id)
    WHERE broker_order_id IS NOT NULL;
DROP INDEX order_attempt_open;
CREATE INDEX order_attempt_open ON order_attempt (broker, account, symbol)
    WHERE status IN ('PREPARED', 'SENT', 'UNKNOWN');
DROP TRIGGER order_attempt_stays ON order_attempt;
CREATE TRIGGER order_attempt_stays AFTER UPDATE ON order_attempt FOR EACH ROW
    WHEN ((OLD.id, OLD.order_intent_id, OLD.attempt_no, OLD.broker, OLD.symbol, OLD.identifier,
           OLD.request_json)
            IS DISTINCT FROM (NEW.id, NEW.order_intent_id, NEW.attempt_no, NEW.broker, NEW.symbol,
               NEW.identifier, NEW.request_json)
        OR OLD.account NOT IN ('', NEW.account)
        OR OLD.broker_order_id <> NEW.broker_order_id
        OR OLD.sent_at <> NEW.sent_at)
    EXECUTE FUNCTION orders_refuse('another attempt');

ALTER TABLE fill DROP CONSTRAINT fill_broker_broker_order_id_fkey;
ALTER TABLE broker_order DROP CONSTRAINT broker_order_pkey;
ALTER TABLE broker_order ADD PRIMARY KEY (broker, account, broker_order_id);
DROP INDEX broker_order_open;
CREATE INDEX broker_order_open ON broker_order (broker, account, placed_at)
    WHERE state = 'OPEN' OR applied < filled;
DROP INDEX broker_order_age;
CREATE INDEX broker_order_age ON broker_order (broker, account, placed_at);
DROP TRIGGER broker_order_stays ON broker_order;
CREATE TRIGGER broker_order_stays AFTER UPDATE ON broker_order FOR EACH ROW
    WHEN ((OLD.broker, OLD.broker_order_id, OLD.symbol, OLD.side)
            IS DISTINCT FROM (NEW.broker, NEW.broker_order_id, NEW.symbol, NEW.side)
        OR OLD.account NOT IN ('', NEW.account)
        OR OLD.order_attempt_id IS NOT NULL
            AND OLD.order_attempt_id IS DISTINCT FROM NEW.order_attempt_id
        OR NEW.filled < OLD.filled)
    EXECUTE FUNCTION orders_refuse('another order');

ALTER TABLE fill DROP CONSTRAINT fill_pkey;
ALTER TABLE fill ADD PRIMARY KEY (broker, account, trade_id);
DROP INDEX fill_order;
CREATE INDEX fill_order ON fill (broker, account, broker_order_id);
DROP INDEX fill_line;
CREATE INDEX fill_line ON fill (broker, account, symbol, traded_at, trade_id);
DROP INDEX fill_waiting;
CREATE INDEX fill_waiting ON fill (broker, account, symbol) WHERE NOT counted;
ALTER TABLE fill ADD FOREIGN KEY (broker, account, broker_order_id) REFERENCES broker_order
    ON UPDATE CASCADE;
DROP TRIGGER fill_stays ON fill;
CREATE TRIGGER fill_stays AFTER UPDATE ON fill FOR EACH ROW
    WHEN ((OLD.broker, OLD.trade_id, OLD.broker_order_id, OLD.symbol, OLD.side, OLD.quantity,
           OLD.price, OLD.fee, OLD.traded_at)
            IS DISTINCT FROM (NEW.broker, NEW.trade_id, NEW.broker_order_id, NEW.symbol, NEW.side,
               NEW.quantity, NEW.price, NEW.fee, NEW.traded_at)
        OR OLD.account NOT IN ('', NEW.account)
        OR OLD.counted AND NOT NEW.counted)
    EXECUTE FUNCTION orders_refuse('another fill');

ALTER TABLE position DROP CONSTRAINT position_pkey;
ALTER TABLE position ADD PRIMARY KEY (broker, account, symbol);
ALTER TABLE market_state DROP CONSTRAINT market_state_pkey;
ALTER TABLE market_state ADD PRIMARY KEY (broker, account, symbol);
ALTER TABLE reconcile_mark DROP CONSTRAINT reconcile_mark_pkey;
ALTER TABLE reconcile_mark ADD PRIMARY KEY (broker, account);
DROP INDEX account_snapshot_age;
CREATE INDEX account_snapshot_age ON account_snapshot (broker, account, taken_at DESC);

CREATE OR REPLACE FUNCTION fill_is_applied() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE broker_order
       SET applied = applied + NEW.quantity, filled = GREATEST(filled, applied + NEW.quantity),
           updated_at = clock_timestamp()
     WHERE broker = NEW.broker AND account = NEW.account
       AND broker_order_id = NEW.broker_order_id;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION fills_are_counted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    wanted integer;
    moved  integer;
BEGIN
    -- All at once: a sale may stand before the purchase that covers it.
    WITH delta AS (
        SELECT n.broker, n.account, n.symbol,
               sum(CASE n.side WHEN 'BUY' THEN n.quantity ELSE -n.quantity END) AS quantity
          FROM after n JOIN before o USING (broker, account, trade_id)
         WHERE n.counted AND NOT o.counted
         GROUP BY n.broker, n.account, n.symbol),
    change AS (
        UPDATE position p SET quantity = p.quantity + d.quantity
          FROM delta d
         WHERE p.broker = d.broker AND p.account = d.account AND p.symbol = d.symbol
        RETURNING 1)
    SELECT (SELECT count(*) FROM delta), (SELECT count(*) FROM change) INTO wanted, moved;
    IF wanted <> moved THEN
        RAISE EXCEPTION 'a fill counts in a position that is not there'
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;

-- --- switches and fail-safe ---------------------------------------------------------------------

ALTER TABLE kill_switch ADD COLUMN broker text NOT NULL DEFAULT '';
ALTER TABLE kill_switch ADD COLUMN account text NOT NULL DEFAULT '';
ALTER TABLE kill_switch ALTER COLUMN broker DROP DEFAULT;
ALTER TABLE kill_switch ALTER COLUMN account DROP DEFAULT;
ALTER TABLE kill_switch DROP CONSTRAINT kill_switch_pkey;
ALTER TABLE kill_switch ADD PRIMARY KEY (broker, account, scope, strategy_key);

ALTER TABLE safety_log ADD COLUMN broker text NOT NULL DEFAULT '';
ALTER TABLE safety_log ADD COLUMN account text NOT NULL DEFAULT '';
ALTER TABLE safety_log ALTER COLUMN broker DROP DEFAULT;
ALTER TABLE safety_log ALTER COLUMN account DROP DEFAULT;
DROP INDEX safety_log_at;
CREATE INDEX safety_log_at ON safety_log (broker, account, at);
CREATE INDEX safety_log_newest ON safety_log (broker, account, id);
DROP TRIGGER safety_log_is_kept ON safety_log;
CREATE TRIGGER safety_log_is_kept BEFORE DELETE ON safety_log
    FOR EACH ROW EXECUTE FUNCTION safety_log_is_kept();
CREATE TRIGGER safety_log_stays BEFORE UPDATE ON safety_log FOR EACH ROW
    WHEN (OLD.broker <> ''
        OR (OLD.at, OLD.code, OLD.message, OLD.state_before, OLD.state_after, OLD.actor, OLD.meta)
            IS DISTINCT FROM
           (NEW.at, NEW.code, NEW.message, NEW.state_before, NEW.state_after, NEW.actor, NEW.meta))
    EXECUTE FUNCTION safety_log_is_kept();

DROP TRIGGER safety_state_guard ON safety_state;
ALTER TABLE safety_state ADD COLUMN broker text NOT NULL DEFAULT '';
ALTER TABLE safety_state ADD COLUMN account text NOT NULL DEFAULT '';
ALTER TABLE safety_state ALTER COLUMN broker DROP DEFAULT;
ALTER TABLE safety_state ALTER COLUMN account DROP DEFAULT;
ALTER TABLE safety_state DROP CONSTRAINT safety_state_pkey;
ALTER TABLE safety_state DROP COLUMN one;
ALTER TABLE safety_state ADD PRIMARY KEY (broker, account);
DELETE FROM safety_state WHERE state = 'NORMAL';  -- how every account begins

CREATE OR REPLACE FUNCTION safety_state_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'the state of the fail-safe can be changed, not removed';
    ELSIF TG_OP = 'INSERT' THEN
        IF NEW.state <> 'NORMAL' THEN
            RAISE EXCEPTION 'the fail-safe of an account begins as NORMAL';
        END IF;
        RETURN NEW;
    END IF;
    IF OLD.broker NOT IN ('', NEW.broker) OR OLD.account NOT IN ('', NEW.account) THEN
        RAISE EXCEPTION 'the state of the fail-safe stays with its account';
    END IF;
    IF OLD.state = NEW.state THEN
        RETURN NEW;
    END IF;
    IF OLD.state = 'LOCKDOWN' AND (NEW.state <> 'NORMAL' OR NEW.released_by IS NULL) THEN
        RAISE EXCEPTION 'LOCKDOWN ends only when a person releases it';
    END IF;
    IF OLD.state = 'FAIL' AND NEW.state = 'WARNING' THEN
        RAISE EXCEPTION 'FAIL ends by a recheck or in LOCKDOWN';
    END IF;
    NEW.since := clock_timestamp();
    IF NEW.state <> 'NORMAL' THEN
        NEW.released_by := NULL;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER safety_state_guard BEFORE INSERT OR UPDATE OR DELETE ON safety_state
    FOR EACH ROW EXECUTE FUNCTION safety_state_guard();

-- Why an order must not leave, as a code; null when it may. Exits pass where entries do not:
-- closing must not wait for a strategy to be switched on, nor for a lockdown to end. Nothing passes
-- when the whole account is switched off, and what was never switched on is off.
DROP FUNCTION order_stop(text, text);
CREATE FUNCTION order_stop(
    at_broker text, of_account text, of_strategy text, of_intent_type text
) RETURNS text VOLATILE LANGUAGE plpgsql AS $$
DECLARE
    safety text;
BEGIN
    IF NOT EXISTS (SELECT FROM kill_switch
                    WHERE broker = at_broker AND account = of_account AND scope = 'account'
                      AND trading_enabled) THEN
        RETURN 'KILL_SWITCH';
    ELSIF of_intent_type <> 'ENTRY' THEN
        RETURN NULL;
    ELSIF NOT EXISTS (SELECT FROM kill_switch
                       WHERE broker = at_broker AND account = of_account AND scope = 'strategy'
                         AND strategy_key = of_strategy AND trading_enabled) THEN
        RETURN 'STRATEGY_OFF';
    END IF;
    safety := COALESCE((SELECT state FROM safety_state
                         WHERE broker = at_broker AND account = of_account), 'LOCKDOWN');
    RETURN CASE WHEN safety NOT IN ('NORMAL', 'WARNING') THEN 'SAFETY_' || safety END;
END $$;

-- Why an order of a market must not leave: the whole venue's reason before the market's own. Exits
-- pass a suspension of their own market. A frozen one lets out what stops or a person ask for, and
-- nothing that a strategy wants.
DROP FUNCTION market_stop(text, text, text);
CREATE FUNCTION market_stop(
    at_broker text, of_account text, of_symbol text, of_intent_type text
) RETURNS text VOLATILE LANGUAGE plpgsql AS $$
DECLARE
    stop record;
    passes boolean;
BEGIN
    SELECT symbol, reason_code INTO stop
      FROM market_state
     WHERE broker = at_broker AND account = of_account AND symbol IN ('*', of_symbol)
       AND trade_status = 'SUSPENDED'
     ORDER BY symbol <> '*' LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    passes := CASE stop.reason_code
              WHEN 'FROZEN' THEN of_intent_type NOT IN ('ENTRY', 'EXIT_SIGNAL', 'EXIT_TP')
              ELSE of_intent_type <> 'ENTRY' AND stop.symbol <> '*' END;
    RETURN CASE WHEN NOT passes THEN 'MARKET_' || stop.reason_code END;
END $$;

-- Make an account known, and give it the rows from before that are its own. The lock orders two
-- accounts that are opened at once: one of them is the first.
CREATE FUNCTION account_open(of_broker text, of_account text, is_live boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM account WHERE broker = of_broker AND account = of_account) THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('qts account open'), 0);
    INSERT INTO account (broker, account) VALUES (of_broker, of_account) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF NOT EXISTS (SELECT FROM account WHERE broker = of_broker AND account <> of_account) THEN
        UPDATE order_intent SET account = of_account WHERE broker = of_broker AND account = '';
        UPDATE order_attempt SET account = of_account WHERE broker = of_broker AND account = '';
        UPDATE broker_order SET account = of_account WHERE broker = of_broker AND account = '';
        UPDATE position SET account = of_account WHERE broker = of_broker AND account = '';
        UPDATE market_state SET account = of_account WHERE broker = of_broker AND account = '';
        UPDATE account_snapshot SET account = of_account WHERE broker = of_broker AND account = '';
        UPDATE reconcile_mark SET account = of_account WHERE broker = of_broker AND account = '';
    END IF;
    IF NOT is_live THEN
        UPDATE kill_switch SET broker = of_broker, account = of_account WHERE broker = '';
        UPDATE safety_state SET broker = of_broker, account = of_account WHERE broker = '';
        UPDATE safety_log SET broker = of_broker, account = of_account WHERE broker = '';
    END IF;
    INSERT INTO safety_state (broker, account) VALUES (of_broker, of_account)
    ON CONFLICT DO NOTHING;
    RETURN true;
END $$;

-- --- commands and events ------------------------------------------------------------------------

-- '' is an event of no account: any consumer may take it.
ALTER TABLE outbox_event ADD COLUMN account text NOT NULL DEFAULT '';
ALTER TABLE outbox_archive ADD COLUMN account text NOT NULL DEFAULT '';
CREATE OR REPLACE VIEW outbox_event_all AS
    SELECT id, event_id, stream, event_type, aggregate_type, aggregate_id, payload_json, status,
           attempt_count, max_attempts, next_retry_at, last_attempt_at, locked_by, locked_until,
           last_error_code, last_error_message, created_at, updated_at, processed_at, account
      FROM outbox_event
    UNION ALL
    SELECT id, event_id, stream, event_type, aggregate_type, aggregate_id, payload_json, 'DONE',
           attempt_count, max_attempts, next_retry_at, last_attempt_at, locked_by, NULL,
           last_error_code, last_error_message, created_at, processed_at, processed_at, account
      FROM outbox_archive;

-- An aggregate belongs to its account: two accounts do not wait for each other.
DROP INDEX outbox_event_line;
CREATE INDEX outbox_event_line
    ON outbox_event (stream, account, aggregate_type, aggregate_id, id)
    WHERE processed_at IS NULL;
DROP TRIGGER outbox_event_stays ON outbox_event;
CREATE TRIGGER outbox_event_stays AFTER UPDATE OF event_id, stream, event_type, account, created_at
    ON outbox_event FOR EACH ROW
    WHEN ((OLD.event_id, OLD.stream, OLD.event_type, OLD.account, OLD.created_at)
        IS DISTINCT FROM
          (NEW.event_id, NEW.stream, NEW.event_type, NEW.account, NEW.created_at))
    EXECUTE FUNCTION outbox_refuse('another identity');

DROP FUNCTION outbox_publish(uuid, text, text, text, text, text, int, float8, boolean);
CREATE FUNCTION outbox_publish(
    of_event uuid, on_stream text, of_type text, of_aggregate_type text, of_aggregate text,
    of_account text, body text, attempts_at_most int, wait_s float8, wakes boolean) RETURNS bigint
VOLATILE LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox_event_id (event_id) VALUES (of_event) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO outbox_event (
        event_id, stream, event_type, aggregate_type, aggregate_id, account, payload_json,
        max_attempts, next_retry_at)
    VALUES (of_event, on_stream, of_type, of_aggregate_type, of_aggregate, of_account, body::jsonb,
            attempts_at_most, clock_timestamp() + make_interval(secs => wait_s));
    IF wakes THEN
        PERFORM pg_notify('outbox ' || on_stream, '');
    END IF;
    RETURN pg_current_xact_id()::text::bigint;
END $$;

-- As before, for the events of these accounts; null for all of them. What other accounts have left
-- does not hold the horizon back.
DROP FUNCTION outbox_horizon(text, boolean, timestamptz, bigint, timestamptz, bigint, bigint);
CREATE FUNCTION outbox_horizon(
    of_stream text, ordered boolean, of_accounts text[],
    INOUT due_from timestamptz, INOUT first_id bigint,
    INOUT mark_at timestamptz, INOUT mark_id bigint, INOUT mark_xid bigint
) LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    IF mark_xid >= pg_snapshot_xmin(pg_current_snapshot())::text::bigint THEN
        RETURN;
    END IF;
    due_from := COALESCE((
        SELECT e.next_retry_at FROM outbox_event e
         WHERE e.stream = of_stream AND e.processed_at IS NULL
           AND (of_accounts IS NULL OR e.account = ANY (of_accounts))
           AND e.next_retry_at >= due_from AND e.next_retry_at < mark_at
           AND (ordered OR e.locked_until IS NULL)
         ORDER BY e.next_retry_at LIMIT 1), mark_at);
    IF ordered THEN
        first_id := COALESCE((
            SELECT e.id FROM outbox_event e
             WHERE e.stream = of_stream AND e.processed_at IS NULL
               AND (of_accounts IS NULL OR e.account = ANY (of_accounts))
               AND e.id >= first_id AND e.id <= mark_id
             ORDER BY e.id LIMIT 1), mark_id + 1);
    END IF;
    mark_at := clock_timestamp();
    SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END INTO mark_id
      FROM outbox_event_id_seq;
    mark_xid := pg_current_xact_id()::text::bigint;
END $$;

DROP FUNCTION outbox_claim_ordered(text, integer, text, interval, boolean, timestamptz, bigint);
CREATE FUNCTION outbox_claim_ordered(
    of_stream text, of_accounts text[], at_most integer, token text, ttl interval, expired boolean,
    since timestamptz DEFAULT '-infinity', first_id bigint DEFAULT 0
) RETURNS SETOF outbox_event LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    mine bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('qts outbox'), hashtext(of_stream));

    WITH claimed AS (
        UPDATE outbox_event
           SET status = 'PROCESSING', locked_by = token, locked_until = clock_timestamp() + ttl,
               attempt_count = attempt_count + 1, last_attempt_at = clock_timestamp(),
               updated_at = clock_timestamp()
         WHERE ctid = ANY (ARRAY(
            SELECT e.ctid
              FROM outbox_event e
             WHERE e.stream = of_stream AND e.processed_at IS NULL
               AND (of_accounts IS NULL OR e.account = ANY (of_accounts))
               AND e.next_retry_at <= statement_timestamp() AND e.next_retry_at >= since
               AND e.attempt_count < e.max_attempts
               AND CASE WHEN expired THEN e.locked_until < statement_timestamp()
                        ELSE e.locked_until IS NULL END
               AND NOT EXISTS (
                    SELECT FROM outbox_event o
                     WHERE o.stream = e.stream AND o.account = e.account
                       AND o.aggregate_type = e.aggregate_type
                       AND o.aggregate_id = e.aggregate_id AND o.processed_at IS NULL
                       AND o.id >= first_id AND o.id <> e.id
                       AND (o.locked_until >= statement_timestamp()
                            OR (o.id < e.id
                                AND (expired OR o.locked_until IS NOT NULL
                                     OR o.next_retry_at > e.next_retry_at
                                     OR o.next_retry_at < since))))
               AND NOT EXISTS (SELECT FROM outbox_paused p WHERE p.stream = of_stream)
             ORDER BY e.next_retry_at, e.id
             LIMIT at_most
               FOR UPDATE SKIP LOCKED))
        RETURNING id)
    SELECT array_agg(id) INTO mine FROM claimed;

    UPDATE outbox_event e
       SET status = 'PENDING', locked_by = NULL, locked_until = NULL,
           attempt_count = attempt_count - 1
     WHERE e.id = ANY (mine)
       AND EXISTS (
            SELECT FROM outbox_event o
             WHERE o.stream = e.stream AND o.account = e.account
               AND o.aggregate_type = e.aggregate_type
               AND o.aggregate_id = e.aggregate_id AND o.processed_at IS NULL
               AND o.id >= first_id AND o.locked_by IS DISTINCT FROM token
               AND (o.id < e.id OR o.locked_until >= statement_timestamp()));

    RETURN QUERY SELECT * FROM outbox_event e WHERE e.id = ANY (mine) AND e.locked_by = token;
END $$;
