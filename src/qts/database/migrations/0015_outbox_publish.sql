-- One event, alone or as part of a statement that does more: it is there when the rest is. `wakes`
-- the consumers at the commit. The number of the transaction; null when the event's id is known.
CREATE FUNCTION outbox_publish(
    of_event uuid, on_stream text, of_type text, of_aggregate_type text, of_aggregate text,
    body text, attempts_at_most int, wait_s float8, wakes boolean) RETURNS bigint
VOLATILE LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox_event_id (event_id) VALUES (of_event) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO outbox_event (
        event_id, stream, event_type, aggregate_type, aggregate_id, payload_json, max_attempts,
        next_retry_at)
    VALUES (of_event, on_stream, of_type, of_aggregate_type, of_aggregate, body::jsonb,
            attempts_at_most, clock_timestamp() + make_interval(secs => wait_s));
    IF wakes THEN
        PERFORM pg_notify('outbox ' || on_stream, '');
    END IF;
    RETURN pg_current_xact_id()::text::bigint;
END $$;
