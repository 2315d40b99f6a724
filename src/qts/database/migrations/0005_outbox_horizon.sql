-- Claims that cost the same while an old snapshot keeps handled rows from being cleaned up: they
-- begin to look where the first unfinished row may be. docs/outbox.md says more.

-- From where on a worker has to look. Nothing unfinished is due before `due_from`, and for an
-- ordered stream nothing unfinished has an id below `first_id`. That can be said only of what no
-- open transaction can still add to, so it takes two calls:
--
--   a mark is set: this moment, the highest id given out, then a transaction id of our own.
--   Whoever publishes has a transaction id before he takes a moment and an id.
--   Once all transactions up to that of the mark are through, nothing can come before the mark.
--
-- Rows in hand count where the order matters: those given back must be seen again at once.
CREATE FUNCTION outbox_horizon(
    of_stream text, ordered boolean,
    INOUT due_from timestamptz, INOUT first_id bigint,
    INOUT mark_at timestamptz, INOUT mark_id bigint, INOUT mark_xid bigint
) LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    IF mark_xid >= pg_snapshot_xmin(pg_current_snapshot())::text::bigint THEN
        RETURN;
    END IF;
    due_from := COALESCE((
        SELECT e.next_retry_at FROM outbox_event e
         WHERE e.stream = of_stream AND e.processed_at IS NULL
           AND e.next_retry_at >= due_from AND e.next_retry_at < mark_at
           AND (ordered OR e.locked_until IS NULL)
         ORDER BY e.next_retry_at LIMIT 1), mark_at);
    IF ordered THEN
        first_id := COALESCE((
            SELECT e.id FROM outbox_event e
             WHERE e.stream = of_stream AND e.processed_at IS NULL
               AND e.id >= first_id AND e.id <= mark_id
             ORDER BY e.id LIMIT 1), mark_id + 1);
    END IF;
    mark_at := clock_timestamp();
    SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END INTO mark_id
      FROM outbox_event_id_seq;
    mark_xid := pg_current_xact_id()::text::bigint;
END $$;

-- As before, but from the horizon on. What is due before `since` was not looked at, so it holds
-- up those behind it in its line.
DROP FUNCTION outbox_claim_ordered(text, integer, text, interval, boolean);
CREATE FUNCTION outbox_claim_ordered(
    of_stream text, at_most integer, token text, ttl interval, expired boolean,
    since timestamptz DEFAULT '-infinity', first_id bigint DEFAULT 0
) RETURNS SETOF outbox_event LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    mine bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('qts outbox'), hashtext(of_stream));

    WITH claimed AS (
        UPDATE outbox_event
           SET status = 'PROCESSING', locked_by = token, locked_until = clock_timestamp() + ttl,
               attempt_count = attempt_count + 1, last_attempt_at = clock_timestamp(),
               updated_at = clock_timestamp()
         WHERE ctid = ANY (ARRAY(
            SELECT e.ctid
              FROM outbox_event e
             WHERE e.stream = of_stream AND e.processed_at IS NULL
               AND e.next_retry_at <= statement_timestamp() AND e.next_retry_at >= since
               AND e.attempt_count < e.max_attempts
               AND CASE WHEN expired THEN e.locked_until < statement_timestamp()
                        ELSE e.locked_until IS NULL END
               AND NOT EXISTS (
                    SELECT FROM outbox_event o
                     WHERE o.stream = e.stream AND o.aggregate_type = e.aggregate_type
                       AND o.aggregate_id = e.aggregate_id AND o.processed_at IS NULL
                       AND o.id >= first_id AND o.id <> e.id
                       AND (o.locked_until >= statement_timestamp()
                            OR (o.id < e.id
                                AND (expired OR o.locked_until IS NOT NULL
                                     OR o.next_retry_at > e.next_retry_at
                                     OR o.next_retry_at < since))))
               AND NOT EXISTS (SELECT FROM outbox_paused p WHERE p.stream = of_stream)
             ORDER BY e.next_retry_at, e.id
             LIMIT at_most
               FOR UPDATE SKIP LOCKED))
        RETURNING id)
    SELECT array_agg(id) INTO mine FROM claimed;

    UPDATE outbox_event e
       SET status = 'PENDING', locked_by = NULL, locked_until = NULL,
           attempt_count = attempt_count - 1
     WHERE e.id = ANY (mine)
       AND EXISTS (
            SELECT FROM outbox_event o
             WHERE o.stream = e.stream AND o.aggregate_type = e.aggregate_type
               AND o.aggregate_id = e.aggregate_id AND o.processed_at IS NULL
               AND o.id >= first_id AND o.locked_by IS DISTINCT FROM token
               AND (o.id < e.id OR o.locked_until >= statement_timestamp()));

    RETURN QUERY SELECT * FROM outbox_event e WHERE e.id = ANY (mine) AND e.locked_by = token;
END $$;
