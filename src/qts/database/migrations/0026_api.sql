-- Tokens of programs for the API of the dashboard. Of the secret part only a digest is stored.
CREATE TABLE api_token (
    id         text        PRIMARY KEY,  -- the part of the token that is no secret
    name       text        NOT NULL,
    role       text        NOT NULL CHECK (role IN ('read', 'trade', 'admin')),
    digest     bytea       NOT NULL CHECK (length(digest) = 32),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by text        NOT NULL,
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz
);
CREATE UNIQUE INDEX api_token_name ON api_token (name) WHERE revoked_at IS NULL;

-- Actions of programs by their Idempotency-Key: the same key returns the first outcome.
--
--   status NULL ──▶ status and answer of the first request
--       └──▶ deleted: its outcome is not known, the next request performs it again
CREATE TABLE api_request (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token_id       text        NOT NULL REFERENCES api_token,
    key            text        NOT NULL,
    request_digest bytea       NOT NULL,
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    status         integer,
    answer         jsonb,
    UNIQUE (token_id, key),
    CHECK ((status IS NULL) = (answer IS NULL))
);
CREATE INDEX api_request_at ON api_request (started_at);
