-- Samples of a run, one a minute: the value of the account, and counts since the start of the run.
-- The daily report reads them; what a day had is the difference of two samples of one run.
CREATE TABLE run_sample (
    broker     text           NOT NULL,
    account    text           NOT NULL,
    started_at timestamptz    NOT NULL,  -- of the run
    taken_at   timestamptz    NOT NULL,
    equity     numeric(38,18) NOT NULL,
    cash       numeric(38,18) NOT NULL,
    unrealised numeric(38,18) NOT NULL,
    counts     jsonb          NOT NULL,
    PRIMARY KEY (broker, account, taken_at)
);
