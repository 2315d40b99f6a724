-- Events whose handler gave up on them, until they are published again.
CREATE TABLE event_dead_letter (
    number      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id    text        NOT NULL,
    event_type  text        NOT NULL,
    priority    smallint    NOT NULL CHECK (priority BETWEEN 0 AND 3),
    handler     text        NOT NULL,
    error       text        NOT NULL,
    event       jsonb       NOT NULL,
    died_at     timestamptz NOT NULL,
    replayed_at timestamptz,
    UNIQUE (event_id, handler, died_at)
);

CREATE INDEX event_dead_letter_open ON event_dead_letter (number) WHERE replayed_at IS NULL;
