-- State that strategies keep over restarts, one row for each account and strategy.
CREATE TABLE strategy_state (
    broker       text        NOT NULL,
    account      text        NOT NULL,
    strategy_key text        NOT NULL,
    state        bytea       NOT NULL CHECK (octet_length(state) <= 65536),
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (broker, account, strategy_key)
);
