-- name: publish
-- Publish one event unless its id is known.
-- $1 event_id, $2 stream, $3 event type, $4 aggregate type, $5 aggregate id, $6 account,
-- $7 envelope, $8 max attempts, $9 delay in seconds, $10 notify the consumers at commit
SELECT outbox_publish($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: publish_many
-- Publish events in the given order, except those whose ids are known.
-- Parameters as in publish, each an array, without the last.
WITH fresh AS (
    INSERT INTO outbox_event_id (event_id)
    SELECT unnest($1::uuid[]) ON CONFLICT DO NOTHING RETURNING event_id)
INSERT INTO outbox_event (
    event_id, stream, event_type, aggregate_type, aggregate_id, account, payload_json,
    max_attempts, next_retry_at)
SELECT event_id, v.stream, v.event_type, v.aggregate_type, v.aggregate_id, v.account,
       v.body::jsonb, v.max_attempts, (SELECT clock_timestamp()) + make_interval(secs => v.wait_s)
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
              $8::int[], $9::float8[]) WITH ORDINALITY
       AS v (event_id, stream, event_type, aggregate_type, aggregate_id, account, body,
             max_attempts, wait_s, place)
  JOIN fresh USING (event_id)
 ORDER BY v.place
RETURNING event_id, pg_current_xact_id()::text::bigint AS xid

-- name: notify
-- Notify the consumers of committed transactions and report which ones are still open.
-- $1 transaction ids, $2 streams
SELECT xid,
       CASE status WHEN 'committed' THEN pg_notify('outbox ' || stream, '') END IS NOT NULL AS woken,
       status = 'in progress' AS open
  FROM (SELECT xid, stream, pg_xact_status(xid::text::xid8) AS status
          FROM unnest($1::bigint[], $2::text[]) AS v (xid, stream)) AS xact

-- name: notify_stream
-- Notify the consumers of a stream that released events may be due before their horizon.
-- $1 stream
SELECT pg_notify('outbox ' || $1, 'all')

-- name: claim_events
-- Claim due events that are not locked: one short statement, one transaction.
-- $1 stream, $2 limit, $3 claim token, $4 lock TTL, $5 accounts, null for all,
-- $6 earliest due time to scan
--
-- The inner query must return its ctids as an array: the planner may execute a joined subquery
-- several times and then claim more than the limit. $6 keeps the scan away from rows that were
-- handled long ago while an old snapshot prevents their cleanup.
UPDATE outbox_event
   SET status = 'PROCESSING', locked_by = $3, locked_until = clock_timestamp() + $4::interval,
       attempt_count = attempt_count + 1, last_attempt_at = clock_timestamp(),
       updated_at = clock_timestamp()
 WHERE ctid = ANY (ARRAY(
    SELECT ctid
      FROM outbox_event
     WHERE stream = $1 AND processed_at IS NULL
       AND next_retry_at <= statement_timestamp() AND next_retry_at >= $6
       AND ($5::text[] IS NULL OR account = ANY ($5))
       AND locked_until IS NULL AND attempt_count < max_attempts
       AND NOT EXISTS (SELECT FROM outbox_paused WHERE stream = $1)
     ORDER BY next_retry_at, id
     LIMIT $2
       FOR UPDATE SKIP LOCKED))
RETURNING id, next_retry_at, attempt_count, max_attempts, aggregate_type, aggregate_id, account,
          payload_json::text AS body

-- name: claim_ordered
-- Claim from a stream that keeps the order within an aggregate; see the function.
-- $1 stream, $2 limit, $3 claim token, $4 lock TTL, $5 accounts, null for all,
-- $6 claim expired locks instead, $7 earliest due time to scan, $8 lowest id of an unfinished event
SELECT id, next_retry_at, attempt_count, max_attempts, aggregate_type, aggregate_id, account,
       payload_json::text AS body
  FROM outbox_claim_ordered($1, $5, $2, $3, $4::interval, $6, $7, $8)

-- name: claim_stale
-- Claim events whose lock has expired.
-- $1 stream, $2 limit, $3 claim token, $4 lock TTL, $5 accounts, null for all
UPDATE outbox_event
   SET locked_by = $3, locked_until = clock_timestamp() + $4::interval,
       attempt_count = attempt_count + 1, last_attempt_at = clock_timestamp(),
       updated_at = clock_timestamp()
 WHERE ctid = ANY (ARRAY(
    SELECT ctid
      FROM outbox_event
     WHERE stream = $1 AND processed_at IS NULL
       AND ($5::text[] IS NULL OR account = ANY ($5))
       AND next_retry_at <= statement_timestamp()
       AND locked_until < statement_timestamp() AND attempt_count < max_attempts
       AND NOT EXISTS (SELECT FROM outbox_paused WHERE stream = $1)
     ORDER BY next_retry_at, id
     LIMIT $2
       FOR UPDATE SKIP LOCKED))
RETURNING id, next_retry_at, attempt_count, max_attempts, aggregate_type, aggregate_id, account,
          payload_json::text AS body

-- name: horizon
-- Advance the point from which a claim scans; see the function.
-- $1 stream, $2 ordered, $3 accounts, null for all, $4 earliest due time, $5 lowest id,
-- $6 $7 $8 mark of the previous call
SELECT due_from, first_id, mark_at, mark_id, mark_xid
  FROM outbox_horizon($1, $2, $3, $4, $5, $6, $7, $8)

-- name: next_due
-- Return the seconds until the next event that is not due yet.
-- $1 stream, $2 accounts, null for all
SELECT extract(epoch FROM next_retry_at - clock_timestamp())::float8
  FROM outbox_event
 WHERE stream = $1 AND processed_at IS NULL AND next_retry_at > statement_timestamp()
   AND ($2::text[] IS NULL OR account = ANY ($2))
 ORDER BY next_retry_at
 LIMIT 1

-- name: extend
-- Extend the locks of these claims.
-- $1 ids, $2 the token of each, $3 lock TTL, $4 include expired locks
--
-- In an ordered stream an expired lock is not extended: another worker may already have claimed the
-- first event of the aggregate.
UPDATE outbox_event e
   SET locked_until = clock_timestamp() + $3::interval, updated_at = clock_timestamp()
  FROM unnest($1::bigint[], $2::text[]) AS v (id, token)
 WHERE e.id = v.id AND e.locked_by = v.token
   AND ($4 OR e.locked_until >= clock_timestamp())
RETURNING e.id

-- name: complete
-- Move the events that this claim still holds to the archive.
-- $1 ids, $2 token
WITH done AS (
    DELETE FROM outbox_event
     WHERE id = ANY ($1::bigint[]) AND locked_by = $2
    RETURNING *)
INSERT INTO outbox_archive (
    id, event_id, stream, event_type, aggregate_type, aggregate_id, account, payload_json,
    attempt_count, max_attempts, next_retry_at, last_attempt_at, locked_by, last_error_code,
    last_error_message, created_at, processed_at)
SELECT id, event_id, stream, event_type, aggregate_type, aggregate_id, account, payload_json,
       attempt_count, max_attempts, next_retry_at, last_attempt_at, locked_by, last_error_code,
       last_error_message, created_at, clock_timestamp()
  FROM done

-- name: complete_born_claimed
-- Archive an event that was inserted as claimed, if that claim still holds it. Its consumers are
-- notified when another event of its aggregate waits for it.
-- $1 event_id, $2 token, $3 stream, $4 account, $5 aggregate type, $6 aggregate id
WITH done AS (
    DELETE FROM outbox_event
     WHERE stream = $3 AND account = $4 AND aggregate_type = $5 AND aggregate_id = $6
       AND processed_at IS NULL AND event_id = $1 AND locked_by = $2
    RETURNING *),
archived AS (
    INSERT INTO outbox_archive (
        id, event_id, stream, event_type, aggregate_type, aggregate_id, account, payload_json,
        attempt_count, max_attempts, next_retry_at, last_attempt_at, locked_by, last_error_code,
        last_error_message, created_at, processed_at)
    SELECT id, event_id, stream, event_type, aggregate_type, aggregate_id, account, payload_json,
           attempt_count, max_attempts, next_retry_at, last_attempt_at, locked_by, last_error_code,
           last_error_message, created_at, clock_timestamp()
      FROM done)
SELECT (SELECT pg_notify('outbox ' || stream, '')
         WHERE EXISTS (SELECT FROM outbox_event e
                        WHERE e.stream = $3 AND e.account = $4 AND e.aggregate_type = $5
                          AND e.aggregate_id = $6 AND e.processed_at IS NULL
                          AND e.event_id <> $1)) IS NULL AS alone
  FROM done

-- name: fail
-- Record failures: schedule a retry or mark the event as dead.
-- $1 ids, $2 tokens, $3 seconds to wait, $4 dead at once, $5 error codes, $6 error messages
UPDATE outbox_event e
   SET status = CASE WHEN v.dead OR e.attempt_count >= e.max_attempts
                     THEN 'DEAD' ELSE 'PENDING' END,
       processed_at = CASE WHEN v.dead OR e.attempt_count >= e.max_attempts
                           THEN clock_timestamp() END,
       next_retry_at = clock_timestamp() + make_interval(secs => v.wait_s),
       locked_by = NULL, locked_until = NULL,
       last_error_code = v.code, last_error_message = v.message,
       updated_at = clock_timestamp()
  FROM unnest($1::bigint[], $2::text[], $3::float8[], $4::bool[], $5::text[], $6::text[])
       AS v (id, token, wait_s, dead, code, message)
 WHERE e.id = v.id AND e.locked_by = v.token
RETURNING e.id, e.status

-- name: release
-- Release events without counting an attempt; the next claim may take them at once.
-- $1 ids, $2 the token of each
UPDATE outbox_event e
   SET status = 'PENDING', locked_by = NULL, locked_until = NULL,
       attempt_count = e.attempt_count - 1, updated_at = clock_timestamp()
  FROM unnest($1::bigint[], $2::text[]) AS v (id, token)
 WHERE e.id = v.id AND e.locked_by = v.token

-- name: end_claims
-- End the claims of an account's events: the workers that held them act no more.
-- $1 streams, $2 account
UPDATE outbox_event
   SET locked_until = clock_timestamp(), updated_at = clock_timestamp()
 WHERE stream = ANY ($1) AND account = $2 AND status = 'PROCESSING' AND processed_at IS NULL
   AND locked_until > clock_timestamp()
RETURNING event_id

-- name: mark_exhausted_dead
-- Mark events as dead whose last attempt ended without a result.
-- $1 stream, $2 accounts, null for all
UPDATE outbox_event
   SET status = 'DEAD', processed_at = clock_timestamp(), updated_at = clock_timestamp(),
       locked_by = NULL, locked_until = NULL,
       last_error_code = 'WORKER_LOST',
       last_error_message = locked_by || ' was lost; no attempts left'
 WHERE ctid = ANY (ARRAY(
    SELECT ctid
      FROM outbox_event
     WHERE stream = $1 AND processed_at IS NULL
       AND ($2::text[] IS NULL OR account = ANY ($2))
       AND locked_until < statement_timestamp() AND attempt_count >= max_attempts
       FOR UPDATE SKIP LOCKED))
RETURNING event_id

-- name: mark_handled
-- Record that a handler has handled an event.
-- $1 handler, $2 event_id
INSERT INTO outbox_handled (handler, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING

-- name: find_live_row
-- Lock the row of an event that is not archived.
-- $1 event_id
SELECT id FROM outbox_event WHERE event_id = $1 FOR UPDATE

-- name: find_archived_row
-- Move an event back from the archive: the relay published it, then its handler failed.
-- $1 event_id
WITH back AS (DELETE FROM outbox_archive WHERE event_id = $1 RETURNING *)
INSERT INTO outbox_event (
    id, event_id, stream, event_type, aggregate_type, aggregate_id, account, payload_json,
    max_attempts, next_retry_at, created_at)
SELECT id, event_id, stream, event_type, aggregate_type, aggregate_id, account, payload_json,
       max_attempts, next_retry_at, created_at
  FROM back
RETURNING id

-- name: insert_unpublished
-- Insert an event that this database did not publish.
-- $1 event_id, $2 stream, $3 event type, $4 aggregate type, $5 aggregate id, $6 account,
-- $7 envelope
WITH known AS (INSERT INTO outbox_event_id (event_id) VALUES ($1) ON CONFLICT DO NOTHING)
INSERT INTO outbox_event (
    event_id, stream, event_type, aggregate_type, aggregate_id, account, payload_json)
VALUES ($1, $2, $3, $4, $5, $6, $7::text::jsonb)
RETURNING id

-- name: lock_for_dead
-- Move a pending event to PROCESSING, the only state that leads to DEAD.
-- $1 id, $2 holder
UPDATE outbox_event
   SET status = 'PROCESSING', locked_by = $2, locked_until = clock_timestamp(),
       attempt_count = attempt_count + 1
 WHERE id = $1 AND status = 'PENDING'

-- name: mark_dead
-- Mark an event as dead.
-- $1 id, $2 attempts, $3 error code, $4 error message
UPDATE outbox_event
   SET status = 'DEAD', processed_at = clock_timestamp(), updated_at = clock_timestamp(),
       last_attempt_at = clock_timestamp(), locked_by = NULL, locked_until = NULL,
       attempt_count = $2, max_attempts = greatest(max_attempts, $2),
       last_error_code = $3, last_error_message = $4
 WHERE id = $1 AND status = 'PROCESSING'

-- name: dead_letters
-- List the dead letters of a stream, newest first.
-- $1 stream, $2 limit
SELECT event_id, stream, event_type, attempt_count, coalesce(last_error_code, ''),
       coalesce(last_error_message, ''), processed_at
  FROM outbox_event
 WHERE stream = $1 AND processed_at IS NOT NULL
 ORDER BY processed_at DESC
 LIMIT $2

-- name: requeue
-- Give a dead letter new attempts. It is queued last, with a new id: later events of its aggregate
-- may be in flight, and the new id keeps two events of one aggregate from being in flight at once.
-- $1 event_id, $2 include unknown outcomes
WITH back AS (
    UPDATE outbox_event
       SET id = nextval(pg_get_serial_sequence('outbox_event', 'id')), status = 'PENDING',
           attempt_count = 0, next_retry_at = clock_timestamp(), processed_at = NULL,
           updated_at = clock_timestamp()
     WHERE event_id = $1 AND processed_at IS NOT NULL
       AND ($2 OR last_error_code IS DISTINCT FROM 'UNKNOWN')
    RETURNING stream)
SELECT stream, pg_notify('outbox ' || stream, '') FROM back

-- name: requeue_all
-- Requeue every dead letter of a stream in the order of their ids.
-- $1 stream, $2 include unknown outcomes
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

-- name: replace_payload
-- Replace the envelope of a dead letter.
-- $1 event_id, $2 envelope
UPDATE outbox_event
   SET payload_json = $2::text::jsonb, updated_at = clock_timestamp()
 WHERE event_id = $1 AND processed_at IS NOT NULL

-- name: purge_dead
-- Delete old dead letters; their ids stay known.
-- $1 stream or null, $2 minimum age in seconds
DELETE FROM outbox_event
 WHERE processed_at < clock_timestamp() - make_interval(secs => $2)
   AND ($1::text IS NULL OR stream = $1)

-- name: pause
-- $1 stream
INSERT INTO outbox_paused (stream) VALUES ($1) ON CONFLICT DO NOTHING

-- name: resume
-- $1 stream
WITH gone AS (DELETE FROM outbox_paused WHERE stream = $1 RETURNING stream)
SELECT pg_notify('outbox ' || stream, '') FROM gone

-- name: depths
-- Count pending, processing and dead events by stream, with the age of the oldest due event.
SELECT stream,
       count(*) FILTER (WHERE status = 'PENDING') AS pending,
       count(*) FILTER (WHERE status = 'PROCESSING') AS processing,
       count(*) FILTER (WHERE status = 'DEAD') AS dead,
       coalesce(extract(epoch FROM clock_timestamp() - min(next_retry_at) FILTER (
           WHERE status = 'PENDING' AND next_retry_at <= clock_timestamp())), 0)::float8
           AS oldest_pending_s
  FROM outbox_event
 GROUP BY stream

-- name: list
-- $1 stream, $2 status, $3 event type, $4 aggregate id, $5 limit; null matches all
SELECT * FROM outbox_event_all
 WHERE ($1::text IS NULL OR stream = $1) AND ($2::text IS NULL OR status = $2)
   AND ($3::text IS NULL OR event_type = $3) AND ($4::text IS NULL OR aggregate_id = $4)
 ORDER BY created_at DESC, id DESC
 LIMIT $5

-- name: show
-- $1 event_id
SELECT * FROM outbox_event_all WHERE event_id = $1

-- name: events_since
-- List events that were published or changed since a point in time, oldest first.
-- $1 since, $2 stream or null, $3 limit
SELECT * FROM (
    SELECT * FROM outbox_event_all WHERE updated_at > $1 AND status <> 'DONE'
    UNION ALL
    SELECT * FROM outbox_event_all WHERE processed_at > $1 AND status = 'DONE') AS changed
 WHERE $2::text IS NULL OR stream = $2
 ORDER BY updated_at
 LIMIT $3
