-- Stop orders, one row each, from their placement on; the id is that of their signal. A row with
-- `triggered_at` is that of an order that was sent, the others wait; what ended unsent has none.
CREATE TABLE stop_order (
    id           uuid        PRIMARY KEY,
    broker       text        NOT NULL,
    account      text        NOT NULL,
    strategy_key text        NOT NULL,
    proposal     jsonb       NOT NULL,
    good_until   timestamptz,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    triggered_at timestamptz
);
CREATE INDEX stop_order_waiting ON stop_order (broker, account) WHERE triggered_at IS NULL;
