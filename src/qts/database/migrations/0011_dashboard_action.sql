-- Every action asked for on the dashboard: written down before it is done, and how it ended.
--
--   BEGUN ──▶ DONE · REFUSED · FAILED
CREATE TABLE dashboard_action (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor   text        NOT NULL,
    role    text        NOT NULL,
    address text        NOT NULL,
    action  text        NOT NULL,
    target  text        NOT NULL DEFAULT '',
    detail  jsonb       NOT NULL DEFAULT '{}',
    outcome text        NOT NULL DEFAULT 'BEGUN'
            CHECK (outcome IN ('BEGUN', 'DONE', 'REFUSED', 'FAILED')),
    message text        NOT NULL DEFAULT ''
);
CREATE INDEX dashboard_action_at ON dashboard_action (at);

CREATE FUNCTION dashboard_action_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'what was done on the dashboard is written once' USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER dashboard_action_stays BEFORE UPDATE ON dashboard_action FOR EACH ROW
    WHEN (OLD.outcome <> 'BEGUN'
        OR (OLD.id, OLD.at, OLD.actor, OLD.role, OLD.address, OLD.action, OLD.target, OLD.detail)
            IS DISTINCT FROM
           (NEW.id, NEW.at, NEW.actor, NEW.role, NEW.address, NEW.action, NEW.target, NEW.detail))
    EXECUTE FUNCTION dashboard_action_is_kept();
CREATE TRIGGER dashboard_action_ends BEFORE DELETE ON dashboard_action FOR EACH ROW
    EXECUTE FUNCTION dashboard_action_is_kept();

-- Who runs takes other parameters of a strategy as soon as they are set.
CREATE FUNCTION strategy_params_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('qts_strategy_params', NEW.strategy_key);
    RETURN NULL;
END $$;
CREATE TRIGGER strategy_params_changed AFTER INSERT OR UPDATE ON strategy_params FOR EACH ROW
    EXECUTE FUNCTION strategy_params_changed();
