-- $1 broker, $2 known up to
INSERT INTO reconcile_mark AS m (broker, reconciled_at) VALUES ($1, $2)
ON CONFLICT (broker) DO UPDATE SET reconciled_at = GREATEST(m.reconciled_at, EXCLUDED.reconciled_at)
