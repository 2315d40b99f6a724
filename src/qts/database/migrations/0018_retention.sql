-- Retention of the two logs that are written once: the fail-safe's and the dashboard's.
--
-- Their triggers refuse every deletion except that of retain_log(), which takes rows of at least
-- 30 days and records what it took in retention_mark: one row per log, so that it does not grow.

CREATE TABLE retention_mark (
    log      text        PRIMARY KEY CHECK (log IN ('safety_log', 'dashboard_action')),
    deleted  bigint      NOT NULL,  -- rows since first_at
    up_to    timestamptz NOT NULL,  -- newest row that was deleted
    first_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE FUNCTION retain_log(log_name text, keep interval, max_rows integer) RETURNS bigint
    LANGUAGE plpgsql AS $$
DECLARE
    gone   bigint;
    newest timestamptz;
BEGIN
    IF log_name NOT IN ('safety_log', 'dashboard_action') THEN
        RAISE EXCEPTION '% is not a log with a retention', log_name USING ERRCODE = 'check_violation';
    END IF;
    IF keep < interval '30 days' THEN
        RAISE EXCEPTION 'a log is kept for at least 30 days' USING ERRCODE = 'check_violation';
    END IF;
    PERFORM set_config('qts.retention', log_name, true);
    EXECUTE format(
        'WITH gone AS (DELETE FROM %I WHERE id = ANY (ARRAY('
        '    SELECT id FROM %I WHERE at < clock_timestamp() - $1 ORDER BY at LIMIT $2))'
        '    RETURNING at)'
        ' SELECT count(*), max(at) FROM gone', log_name, log_name)
       INTO gone, newest USING keep, max_rows;
    PERFORM set_config('qts.retention', '', true);
    IF gone > 0 THEN
        INSERT INTO retention_mark AS m (log, deleted, up_to) VALUES (log_name, gone, newest)
            ON CONFLICT (log) DO UPDATE SET deleted = m.deleted + gone,
                up_to = greatest(m.up_to, newest), last_at = clock_timestamp();
    END IF;
    RETURN gone;
END $$;

CREATE OR REPLACE FUNCTION safety_log_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('qts.retention', true) = 'safety_log'
       AND OLD.at < clock_timestamp() - interval '30 days' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the log of the fail-safe is written once';
END $$;

CREATE OR REPLACE FUNCTION dashboard_action_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('qts.retention', true) = 'dashboard_action'
       AND OLD.at < clock_timestamp() - interval '30 days' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'what was done on the dashboard is written once' USING ERRCODE = 'check_violation';
END $$;
