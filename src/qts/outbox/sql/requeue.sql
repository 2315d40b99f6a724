-- New attempts for a dead letter. It goes behind what waits: its line may have moved on, and a
-- new id is what keeps two events of one aggregate from being in hand at once.
-- $1 event_id, $2 even where the outcome is not known
WITH back AS (
    UPDATE outbox_event
       SET id = nextval(pg_get_serial_sequence('outbox_event', 'id')), status = 'PENDING',
           attempt_count = 0, next_retry_at = clock_timestamp(), processed_at = NULL,
           updated_at = clock_timestamp()
     WHERE event_id = $1 AND processed_at IS NOT NULL
       AND ($2 OR last_error_code IS DISTINCT FROM 'UNKNOWN')
    RETURNING stream)
SELECT stream, pg_notify('outbox ' || stream, '') FROM back
