-- A dead letter is asked for by a person; the next engine that looks publishes it.
ALTER TABLE event_dead_letter ADD COLUMN replay_asked_at timestamptz;

CREATE INDEX event_dead_letter_asked ON event_dead_letter (number)
    WHERE replay_asked_at IS NOT NULL AND replayed_at IS NULL;
