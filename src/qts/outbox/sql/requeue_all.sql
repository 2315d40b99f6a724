-- As requeue, for every dead letter of a stream, in the order of their ids.
-- $1 stream, $2 even where the outcome is not known
WITH back AS (
    UPDATE outbox_event e
       SET id = fresh.id, status = 'PENDING', attempt_count = 0,
           next_retry_at = clock_timestamp(), processed_at = NULL, updated_at = clock_timestamp()
      FROM (SELECT old.id AS old_id, nextval(pg_get_serial_sequence('outbox_event', 'id')) AS id
              FROM (SELECT id FROM outbox_event
                     WHERE stream = $1 AND processed_at IS NOT NULL
                       AND ($2 OR last_error_code IS DISTINCT FROM 'UNKNOWN')
                     ORDER BY id) AS old) AS fresh
     WHERE e.id = fresh.old_id AND e.processed_at IS NOT NULL
    RETURNING e.stream)
SELECT count(*), (SELECT pg_notify('outbox ' || $1, '')) FROM back
