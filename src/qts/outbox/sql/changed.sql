-- What was published or has moved since then, oldest first.
-- $1 since, $2 stream or null, $3 at most
SELECT * FROM (
    SELECT * FROM outbox_event_all WHERE updated_at > $1 AND status <> 'DONE'
    UNION ALL
    SELECT * FROM outbox_event_all WHERE processed_at > $1 AND status = 'DONE') AS moved
 WHERE $2::text IS NULL OR stream = $2
 ORDER BY updated_at
 LIMIT $3
