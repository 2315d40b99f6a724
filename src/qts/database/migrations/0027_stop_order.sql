-- Stop orders that wait for their price in QTS, one row each; the id is that of their signal.
CREATE TABLE stop_order (
    id           uuid        PRIMARY KEY,
    broker       text        NOT NULL,
    account      text        NOT NULL,
    strategy_key text        NOT NULL,
    proposal     jsonb       NOT NULL,
    good_until   timestamptz,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX stop_order_account ON stop_order (broker, account);
