-- Alerts of runs that an operator must see: open until acknowledged. One that comes again while it
-- is open counts up instead of adding a row.
CREATE TABLE alert (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account         text        NOT NULL,  -- the first account of the run
    severity        text        NOT NULL CHECK (severity IN ('warning', 'critical')),
    code            text        NOT NULL,
    message         text        NOT NULL,
    first_at        timestamptz NOT NULL,
    last_at         timestamptz NOT NULL,
    times           integer     NOT NULL DEFAULT 1,
    acknowledged_at timestamptz,
    acknowledged_by text,
    note            text        NOT NULL DEFAULT '',
    CHECK ((acknowledged_at IS NULL) = (acknowledged_by IS NULL))
);
CREATE UNIQUE INDEX alert_open ON alert (account, severity, code, md5(message))
    WHERE acknowledged_at IS NULL;
CREATE INDEX alert_at ON alert (account, last_at);
