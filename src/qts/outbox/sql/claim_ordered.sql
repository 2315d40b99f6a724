-- The same for a stream whose aggregates keep their order; see the function.
-- $1 stream, $2 at most, $3 token of this claim, $4 lock time, $5 those whose lock ran out,
-- $6 look from here on, $7 no unfinished event has an id below
SELECT id, next_retry_at, attempt_count, max_attempts, aggregate_type, aggregate_id,
       payload_json::text AS body
  FROM outbox_claim_ordered($1, $2, $3, $4::interval, $5, $6, $7)
