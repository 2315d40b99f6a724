-- How much waits, is in hand and is dead, by stream, and how long the oldest has waited.
SELECT stream,
       count(*) FILTER (WHERE status = 'PENDING') AS pending,
       count(*) FILTER (WHERE status = 'PROCESSING') AS processing,
       count(*) FILTER (WHERE status = 'DEAD') AS dead,
       coalesce(extract(epoch FROM clock_timestamp() - min(next_retry_at) FILTER (
           WHERE status = 'PENDING' AND next_retry_at <= clock_timestamp())), 0)::float8
           AS oldest_pending_s
  FROM outbox_event
 GROUP BY stream
