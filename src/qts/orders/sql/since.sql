-- From when on a venue has to be asked: what is known to be incomplete, or the last look.
-- $1 broker
SELECT LEAST(
    (SELECT reconciled_at FROM reconcile_mark WHERE broker = $1),
    (SELECT min(placed_at) FROM broker_order
      WHERE broker = $1 AND origin <> 'EXTERNAL' AND (state = 'OPEN' OR applied < filled)),
    (SELECT min(sent_at) FROM order_attempt
      WHERE broker = $1 AND status IN ('SENT', 'UNKNOWN'))) AS since,
    EXISTS (SELECT FROM reconcile_mark WHERE broker = $1) AS has_mark
