-- Searches of parameters whose trials run on several machines; both tables are empty in between.
CREATE TABLE study (
    id         uuid        PRIMARY KEY,
    name       text        NOT NULL,
    identity   jsonb       NOT NULL,
    context    bytea       NOT NULL,
    seen_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE study_trial (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    study_id    uuid        NOT NULL REFERENCES study ON DELETE CASCADE,
    task        bytea       NOT NULL,
    attempts    integer     NOT NULL DEFAULT 0,
    worker      text,
    lease_until timestamptz,
    result      bytea
);
CREATE INDEX study_trial_open ON study_trial (study_id, id) WHERE result IS NULL;
