-- Backtests that were asked for on the bus, and what they came to.
CREATE TABLE backtest_job (
    job_id      uuid        PRIMARY KEY,
    request     jsonb       NOT NULL,
    status      text        NOT NULL DEFAULT 'QUEUED'
                CHECK (status IN ('QUEUED', 'RUNNING', 'DONE', 'FAILED')),
    attempts    integer     NOT NULL DEFAULT 0,
    result      jsonb,
    error       text        NOT NULL DEFAULT '',
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at  timestamptz,
    finished_at timestamptz,
    CHECK ((status = 'DONE') = (result IS NOT NULL)),
    CHECK ((status IN ('DONE', 'FAILED')) = (finished_at IS NOT NULL))
);

CREATE INDEX backtest_job_young ON backtest_job (created_at DESC);
