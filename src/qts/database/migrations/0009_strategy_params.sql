-- The parameters of strategies, as their owner set them last.
CREATE TABLE strategy_params (
    strategy_key text        PRIMARY KEY,
    params       jsonb       NOT NULL,
    version      bigint      NOT NULL DEFAULT 1,
    changed_by   text        NOT NULL,
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
