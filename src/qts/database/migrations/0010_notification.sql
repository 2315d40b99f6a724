-- Messages to the owner: written once for each channel and event, sent by a worker of their own.
--
--   PENDING ──▶ SENT         the channel took it
--      └──────▶ GIVEN_UP     too old, declined for good, or the channel was switched off

CREATE TABLE notification_channel (
    channel      text        PRIMARY KEY,
    address_hash text        NOT NULL,
    since        timestamptz NOT NULL DEFAULT clock_timestamp(),
    disabled_at  timestamptz,
    reason       text        NOT NULL DEFAULT ''
);

CREATE TABLE notification_log (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    channel    text        NOT NULL,
    event_id   uuid        NOT NULL,
    severity   text        NOT NULL CHECK (severity IN ('info', 'warning', 'critical')),
    message    text        NOT NULL,  -- JSON as it is sent
    state      text        NOT NULL DEFAULT 'PENDING'
               CHECK (state IN ('PENDING', 'SENT', 'GIVEN_UP')),
    tries      integer     NOT NULL DEFAULT 0,
    due_at     timestamptz NOT NULL DEFAULT clock_timestamp(),  -- later while somebody sends it
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at   timestamptz,
    error      text        NOT NULL DEFAULT '',
    UNIQUE (channel, event_id)
);
CREATE INDEX notification_log_waiting ON notification_log (channel, id) WHERE state = 'PENDING';
CREATE INDEX notification_log_at ON notification_log (created_at);

-- Browsers that asked for web push.
CREATE TABLE push_subscription (
    endpoint_hash text        PRIMARY KEY,
    endpoint      text        NOT NULL,
    p256dh        text        NOT NULL,
    auth          text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    disabled_at   timestamptz
);
