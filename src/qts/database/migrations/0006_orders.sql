-- Orders: from a signal to a position. docs/life-of-an-order.md tells the same as a story.
--
--   signal ─▶ order_intent ─▶ order_attempt ─▶ broker_order ─▶ fill ─▶ position
--
--   market_state       whether new orders of a market may leave
--   account_snapshot   what the venue said we have, each time it was asked
--   reconcile_mark     how far a venue's history is known here
--
-- What the code must never do is refused here as well: conditions stand in WHEN, so that the
-- function runs only to refuse. Rows are locked in this order: attempt, order, position, intent.

CREATE FUNCTION orders_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before jsonb := to_jsonb(OLD);
    after  jsonb := to_jsonb(NEW);
BEGIN
    RAISE EXCEPTION '% %: % is not allowed (% to %)',
        TG_TABLE_NAME, COALESCE(after, before) ->> 'id', TG_ARGV[0],
        COALESCE(before ->> 'status', before ->> 'state', 'nothing'),
        COALESCE(after ->> 'status', after ->> 'state', 'nothing')
        USING ERRCODE = 'check_violation';
END $$;

-- A process that stands still in the middle of a transaction must not hold the others up.
CREATE FUNCTION orders_in_time() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('idle_in_transaction_session_timeout', '5s', true);
    IF current_setting('server_version_num')::integer >= 170000 THEN
        PERFORM set_config('transaction_timeout', '5s', true);
    END IF;
    RETURN true;
END $$;

CREATE TABLE signal (
    id           uuid        PRIMARY KEY,  -- the identity: the same decision has the same id
    strategy_key text        NOT NULL,
    symbol       text        NOT NULL,
    side         text        NOT NULL CHECK (side IN ('BUY', 'SELL')),
    reason       text        NOT NULL,
    decided_at   timestamptz NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE order_intent (
    id                  uuid           PRIMARY KEY,
    signal_id           uuid           NOT NULL REFERENCES signal,
    intent_type         text           NOT NULL,
    broker              text           NOT NULL,
    strategy_key        text           NOT NULL,
    symbol              text           NOT NULL,
    side                text           NOT NULL CHECK (side IN ('BUY', 'SELL')),
    order_type          text           NOT NULL CHECK (order_type IN ('LIMIT', 'MARKET')),
    quantity            numeric(38,18) NOT NULL CHECK (quantity > 0),
    price               numeric(38,18) CHECK (price > 0),
    status              text           NOT NULL DEFAULT 'CREATED'
                        CHECK (status IN ('CREATED', 'COMPLETED', 'CANCELED')),
    reason_code         text           NOT NULL DEFAULT '',  -- why it was canceled
    approved_at         timestamptz    NOT NULL,
    expires_at          timestamptz    NOT NULL,
    cancel_requested_at timestamptz,
    created_at          timestamptz    NOT NULL DEFAULT clock_timestamp(),
    updated_at          timestamptz    NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (signal_id, intent_type),
    CHECK ((order_type = 'LIMIT') = (price IS NOT NULL))
);
CREATE INDEX order_intent_age ON order_intent (created_at);
CREATE INDEX order_intent_open ON order_intent (broker, symbol) WHERE status = 'CREATED';

-- CREATED ──▶ COMPLETED            filled
--    └──────▶ CANCELED ──▶ COMPLETED   nothing more comes; unless a late fill completes it
CREATE TRIGGER order_intent_goes AFTER UPDATE OF status ON order_intent FOR EACH ROW
    WHEN (OLD.status <> NEW.status AND (OLD.status, NEW.status) NOT IN (
        ('CREATED', 'COMPLETED'), ('CREATED', 'CANCELED'), ('CANCELED', 'COMPLETED')))
    EXECUTE FUNCTION orders_refuse('this change of state');
CREATE TRIGGER order_intent_stays AFTER UPDATE ON order_intent FOR EACH ROW
    WHEN ((OLD.id, OLD.signal_id, OLD.intent_type, OLD.broker, OLD.symbol, OLD.side,
           OLD.order_type, OLD.quantity, OLD.price, OLD.expires_at)
        IS DISTINCT FROM (NEW.id, NEW.signal_id, NEW.intent_type, NEW.broker, NEW.symbol, NEW.side,
           NEW.order_type, NEW.quantity, NEW.price, NEW.expires_at))
    EXECUTE FUNCTION orders_refuse('another order');
CREATE TRIGGER order_intent_ends AFTER DELETE ON order_intent FOR EACH ROW
    EXECUTE FUNCTION orders_refuse('forgetting it');

CREATE TABLE order_attempt (
    id              uuid        PRIMARY KEY,
    order_intent_id uuid        NOT NULL REFERENCES order_intent,
    attempt_no      integer     NOT NULL CHECK (attempt_no >= 1),
    broker          text        NOT NULL,
    symbol          text        NOT NULL,
    identifier      text        NOT NULL UNIQUE,
    request_json    jsonb       NOT NULL,
    status          text        NOT NULL DEFAULT 'PREPARED' CHECK (status IN (
                        'PREPARED', 'SENT', 'ACKED', 'REJECTED', 'THROTTLED', 'UNKNOWN', 'ABSENT',
                        'SUSPENDED')),
    broker_order_id text,
    error_code      text        NOT NULL DEFAULT '',
    error_message   text        NOT NULL DEFAULT '',
    next_retry_at   timestamptz,
    sent_at         timestamptz,
    needs_person    boolean     NOT NULL DEFAULT false,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (order_intent_id, attempt_no),
    CONSTRAINT order_attempt_frozen CHECK (request_json ->> 'identifier' = identifier),
    CONSTRAINT order_attempt_acked CHECK (status <> 'ACKED' OR broker_order_id IS NOT NULL),
    CONSTRAINT order_attempt_throttled CHECK (status <> 'THROTTLED' OR next_retry_at IS NOT NULL),
    CONSTRAINT order_attempt_sent CHECK ((sent_at IS NULL) = (status IN ('PREPARED', 'SUSPENDED'))),
    CONSTRAINT order_attempt_person CHECK (NOT needs_person OR status = 'UNKNOWN')
);
-- At most one attempt of an intent can become, or is, an order.
CREATE UNIQUE INDEX order_attempt_live ON order_attempt (order_intent_id)
    WHERE status IN ('PREPARED', 'SENT', 'UNKNOWN', 'ACKED');
-- With a condition, so that it is no key in PostgreSQL's eyes: an update of it must not wait for
-- those who refer to the attempt.
CREATE UNIQUE INDEX order_attempt_order ON order_attempt (broker, broker_order_id)
    WHERE broker_order_id IS NOT NULL;
CREATE INDEX order_attempt_open ON order_attempt (broker, symbol)
    WHERE status IN ('PREPARED', 'SENT', 'UNKNOWN');
CREATE INDEX order_attempt_sent_at ON order_attempt (sent_at) WHERE sent_at IS NOT NULL;

CREATE TRIGGER order_attempt_begins AFTER INSERT ON order_attempt FOR EACH ROW
    WHEN (NEW.status <> 'PREPARED')
    EXECUTE FUNCTION orders_refuse('this beginning');
-- As drawn in qts/domain/trading.py.
CREATE TRIGGER order_attempt_goes AFTER UPDATE OF status ON order_attempt FOR EACH ROW
    WHEN (OLD.status <> NEW.status AND (OLD.status, NEW.status) NOT IN (
        ('PREPARED', 'SENT'), ('PREPARED', 'SUSPENDED'),
        ('SENT', 'ACKED'), ('SENT', 'REJECTED'), ('SENT', 'THROTTLED'), ('SENT', 'UNKNOWN'),
        ('UNKNOWN', 'ACKED'), ('UNKNOWN', 'REJECTED'), ('UNKNOWN', 'ABSENT')))
    EXECUTE FUNCTION orders_refuse('this change of state');
CREATE TRIGGER order_attempt_stays AFTER UPDATE ON order_attempt FOR EACH ROW
    WHEN ((OLD.id, OLD.order_intent_id, OLD.attempt_no, OLD.broker, OLD.symbol, OLD.identifier,
           OLD.request_json)
            IS DISTINCT FROM (NEW.id, NEW.order_intent_id, NEW.attempt_no, NEW.broker, NEW.symbol,
               NEW.identifier, NEW.request_json)
        OR OLD.broker_order_id <> NEW.broker_order_id
        OR OLD.sent_at <> NEW.sent_at)
    EXECUTE FUNCTION orders_refuse('another attempt');
CREATE TRIGGER order_attempt_ends AFTER DELETE ON order_attempt FOR EACH ROW
    EXECUTE FUNCTION orders_refuse('forgetting it');

-- An order as its venue tells of it. FOREIGN ones were placed by others: known, and not counted in
-- our positions. EXTERNAL ones are holdings that a person took over. A fill may come before
-- anything else is known of its order.
CREATE TABLE broker_order (
    broker           text           NOT NULL,
    broker_order_id  text           NOT NULL,
    order_attempt_id uuid           UNIQUE REFERENCES order_attempt,
    origin           text           NOT NULL CHECK (origin IN ('OURS', 'FOREIGN', 'EXTERNAL')),
    identifier       text,
    symbol           text           NOT NULL,
    side             text           NOT NULL CHECK (side IN ('BUY', 'SELL')),
    order_type       text           CHECK (order_type IN ('LIMIT', 'MARKET')),
    quantity         numeric(38,18) CHECK (quantity > 0),
    price            numeric(38,18) CHECK (price > 0),
    filled           numeric(38,18) NOT NULL DEFAULT 0 CHECK (filled >= 0),  -- as the venue says
    applied          numeric(38,18) NOT NULL DEFAULT 0,                      -- sum of the fills here
    state            text           NOT NULL DEFAULT 'OPEN'
                     CHECK (state IN ('OPEN', 'FILLED', 'CANCELLED')),
    placed_at        timestamptz    NOT NULL,
    created_at       timestamptz    NOT NULL DEFAULT clock_timestamp(),
    updated_at       timestamptz    NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (broker, broker_order_id),
    CHECK ((origin = 'OURS') = (order_attempt_id IS NOT NULL)),
    CHECK (applied <= filled)
);
CREATE INDEX broker_order_open ON broker_order (broker, placed_at)
    WHERE state = 'OPEN' OR applied < filled;
CREATE INDEX broker_order_age ON broker_order (broker, placed_at);

-- OPEN ──▶ CANCELLED ──▶ FILLED (its last fill came late); nothing opens again.
CREATE TRIGGER broker_order_goes AFTER UPDATE OF state ON broker_order FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (
        ('OPEN', 'FILLED'), ('OPEN', 'CANCELLED'), ('CANCELLED', 'FILLED')))
    EXECUTE FUNCTION orders_refuse('this change of state');
CREATE TRIGGER broker_order_stays AFTER UPDATE ON broker_order FOR EACH ROW
    WHEN ((OLD.broker, OLD.broker_order_id, OLD.symbol, OLD.side)
            IS DISTINCT FROM (NEW.broker, NEW.broker_order_id, NEW.symbol, NEW.side)
        OR OLD.order_attempt_id IS NOT NULL
            AND OLD.order_attempt_id IS DISTINCT FROM NEW.order_attempt_id
        OR NEW.filled < OLD.filled)
    EXECUTE FUNCTION orders_refuse('another order');
CREATE TRIGGER broker_order_ends AFTER DELETE ON broker_order FOR EACH ROW
    EXECUTE FUNCTION orders_refuse('forgetting it');

CREATE TABLE position (
    broker         text           NOT NULL,
    symbol         text           NOT NULL,
    quantity       numeric(38,18) NOT NULL DEFAULT 0,
    allows_short   boolean        NOT NULL DEFAULT false,
    average_price  numeric(38,18) NOT NULL DEFAULT 0 CHECK (average_price >= 0),
    realised_pnl   numeric(38,18) NOT NULL DEFAULT 0,  -- before fees
    fees           numeric(38,18) NOT NULL DEFAULT 0,
    opened_at      timestamptz,   -- since when it is not flat, on this side
    last_traded_at timestamptz,   -- the latest fill that is counted
    last_trade_id  text,
    updated_at     timestamptz    NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (broker, symbol),
    CONSTRAINT position_long_only CHECK (allows_short OR quantity >= 0)
);

CREATE TABLE fill (
    broker          text           NOT NULL,
    trade_id        text           NOT NULL,
    broker_order_id text           NOT NULL,
    symbol          text           NOT NULL,
    side            text           NOT NULL CHECK (side IN ('BUY', 'SELL')),
    quantity        numeric(38,18) NOT NULL CHECK (quantity > 0),
    price           numeric(38,18) NOT NULL CHECK (price > 0),
    fee             numeric(38,18) NOT NULL,
    traded_at       timestamptz    NOT NULL,
    counted         boolean        NOT NULL DEFAULT false,  -- it is in the position
    realised_pnl    numeric(38,18) NOT NULL DEFAULT 0,      -- what it closed, before fees
    received_at     timestamptz    NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (broker, trade_id),
    FOREIGN KEY (broker, broker_order_id) REFERENCES broker_order
);
CREATE INDEX fill_order ON fill (broker, broker_order_id);
CREATE INDEX fill_line ON fill (broker, symbol, traded_at, trade_id);
CREATE INDEX fill_waiting ON fill (broker, symbol) WHERE NOT counted;
CREATE INDEX fill_age ON fill (traded_at);

CREATE TRIGGER fill_stays AFTER UPDATE ON fill FOR EACH ROW
    WHEN ((OLD.broker, OLD.trade_id, OLD.broker_order_id, OLD.symbol, OLD.side, OLD.quantity,
           OLD.price, OLD.fee, OLD.traded_at)
            IS DISTINCT FROM (NEW.broker, NEW.trade_id, NEW.broker_order_id, NEW.symbol, NEW.side,
               NEW.quantity, NEW.price, NEW.fee, NEW.traded_at)
        OR OLD.counted AND NOT NEW.counted)
    EXECUTE FUNCTION orders_refuse('another fill');
CREATE TRIGGER fill_ends AFTER DELETE ON fill FOR EACH ROW
    EXECUTE FUNCTION orders_refuse('forgetting it');

-- The sums that fills make are made here and nowhere else: a position is what its fills say.
CREATE FUNCTION fill_is_applied() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE broker_order
       SET applied = applied + NEW.quantity, filled = GREATEST(filled, applied + NEW.quantity),
           updated_at = clock_timestamp()
     WHERE broker = NEW.broker AND broker_order_id = NEW.broker_order_id;
    RETURN NULL;
END $$;
CREATE TRIGGER fill_applies AFTER INSERT ON fill FOR EACH ROW
    EXECUTE FUNCTION fill_is_applied();

CREATE FUNCTION fills_are_counted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    wanted integer;
    moved  integer;
BEGIN
    -- All at once: a sale may stand before the purchase that covers it.
    WITH delta AS (
        SELECT n.broker, n.symbol,
               sum(CASE n.side WHEN 'BUY' THEN n.quantity ELSE -n.quantity END) AS quantity
          FROM after n JOIN before o USING (broker, trade_id)
         WHERE n.counted AND NOT o.counted
         GROUP BY n.broker, n.symbol),
    change AS (
        UPDATE position p SET quantity = p.quantity + d.quantity
          FROM delta d
         WHERE p.broker = d.broker AND p.symbol = d.symbol
        RETURNING 1)
    SELECT (SELECT count(*) FROM delta), (SELECT count(*) FROM change) INTO wanted, moved;
    IF wanted <> moved THEN
        RAISE EXCEPTION 'a fill counts in a position that is not there'
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER fill_begins AFTER INSERT ON fill FOR EACH ROW
    WHEN (NEW.counted)
    EXECUTE FUNCTION orders_refuse('counting it at once');
CREATE TRIGGER fill_counts AFTER UPDATE ON fill
    REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT
    EXECUTE FUNCTION fills_are_counted();
CREATE TRIGGER position_begins AFTER INSERT ON position FOR EACH ROW
    WHEN (NEW.quantity <> 0)
    EXECUTE FUNCTION orders_refuse('a quantity without fills');
CREATE TRIGGER position_stays AFTER UPDATE OF quantity ON position FOR EACH ROW
    WHEN (OLD.quantity <> NEW.quantity AND pg_trigger_depth() = 0)
    EXECUTE FUNCTION orders_refuse('a quantity without fills');
CREATE TRIGGER position_ends AFTER DELETE ON position FOR EACH ROW
    EXECUTE FUNCTION orders_refuse('forgetting it');

-- The symbol * is the whole venue.
CREATE TABLE market_state (
    broker       text        NOT NULL,
    symbol       text        NOT NULL,
    trade_status text        NOT NULL CHECK (trade_status IN ('ACTIVE', 'SUSPENDED')),
    reason_code  text        NOT NULL DEFAULT '',
    detail       text        NOT NULL DEFAULT '',
    suspended_at timestamptz,
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (broker, symbol),
    CHECK ((trade_status = 'SUSPENDED') = (suspended_at IS NOT NULL)),
    CHECK ((trade_status = 'SUSPENDED') = (reason_code <> ''))
);

CREATE TABLE account_snapshot (
    id       bigint         GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    broker   text           NOT NULL,
    taken_at timestamptz    NOT NULL,
    cash     numeric(38,18) NOT NULL,
    holdings jsonb          NOT NULL
);
CREATE INDEX account_snapshot_age ON account_snapshot (broker, taken_at DESC);

CREATE TABLE reconcile_mark (
    broker        text        PRIMARY KEY,
    reconciled_at timestamptz NOT NULL
);
