-- $1 stream, $2 status, $3 event type, $4 aggregate id, $5 at most; null: any
SELECT * FROM outbox_event_all
 WHERE ($1::text IS NULL OR stream = $1) AND ($2::text IS NULL OR status = $2)
   AND ($3::text IS NULL OR event_type = $3) AND ($4::text IS NULL OR aggregate_id = $4)
 ORDER BY created_at DESC, id DESC
 LIMIT $5
