-- The latest status of the run of each account, for the views of several runs on one database. The run
-- that holds the lease writes it once a second, under its epoch; its age is measured on this server's
-- clock, so that the clocks of the machines need not agree.
CREATE TABLE run_status (
    broker     text        NOT NULL,
    account    text        NOT NULL,
    epoch      bigint      NOT NULL,  -- of the lease that it was written under
    written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    status     jsonb       NOT NULL,
    PRIMARY KEY (broker, account)
) WITH (fillfactor = 50);
