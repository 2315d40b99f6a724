-- The fail-safe and the switches: what must be remembered by a restart, and cannot be argued with.
--
--   NORMAL ──▶ WARNING ──▶ FAIL ──▶ LOCKDOWN        LOCKDOWN ──▶ NORMAL only when a person says so
--      ▲───────────┘          │
--      └──────────────────────┘ after a recheck

CREATE TABLE safety_state (
    one         boolean     PRIMARY KEY DEFAULT true CHECK (one),
    state       text        NOT NULL DEFAULT 'NORMAL'
                            CHECK (state IN ('NORMAL', 'WARNING', 'FAIL', 'LOCKDOWN')),
    code        text,
    message     text        NOT NULL DEFAULT '',
    since       timestamptz NOT NULL DEFAULT clock_timestamp(),
    released_by text
);
INSERT INTO safety_state DEFAULT VALUES;

CREATE TABLE safety_log (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    code         text        NOT NULL,
    message      text        NOT NULL,
    state_before text        NOT NULL,
    state_after  text        NOT NULL,
    actor        text        NOT NULL,
    meta         jsonb       NOT NULL DEFAULT '{}'
);
CREATE INDEX safety_log_at ON safety_log (at);

-- No row, no trading: whoever wants to trade has to say so once.
CREATE TABLE kill_switch (
    scope           text        NOT NULL CHECK (scope IN ('account', 'strategy')),
    strategy_key    text        NOT NULL DEFAULT '',
    trading_enabled boolean     NOT NULL,
    reason          text        NOT NULL DEFAULT '',
    changed_by      text        NOT NULL,
    changed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (scope, strategy_key),
    CHECK ((scope = 'account') = (strategy_key = ''))
);

CREATE FUNCTION safety_state_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'UPDATE' THEN
        RAISE EXCEPTION 'the state of the fail-safe can be changed, not added or removed';
    END IF;
    IF OLD.state = NEW.state THEN
        RETURN NEW;
    END IF;
    IF OLD.state = 'LOCKDOWN' AND (NEW.state <> 'NORMAL' OR NEW.released_by IS NULL) THEN
        RAISE EXCEPTION 'LOCKDOWN ends only when a person releases it';
    END IF;
    IF OLD.state = 'FAIL' AND NEW.state = 'WARNING' THEN
        RAISE EXCEPTION 'FAIL ends by a recheck or in LOCKDOWN';
    END IF;
    NEW.since := clock_timestamp();
    IF NEW.state <> 'NORMAL' THEN
        NEW.released_by := NULL;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER safety_state_guard BEFORE INSERT OR UPDATE OR DELETE ON safety_state
    FOR EACH ROW EXECUTE FUNCTION safety_state_guard();

CREATE FUNCTION safety_log_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the log of the fail-safe is written once';
END $$;
CREATE TRIGGER safety_log_is_kept BEFORE UPDATE OR DELETE ON safety_log
    FOR EACH ROW EXECUTE FUNCTION safety_log_is_kept();

CREATE FUNCTION safety_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('qts_safety', '');
    RETURN NULL;
END $$;
CREATE TRIGGER safety_changed AFTER UPDATE ON safety_state
    FOR EACH STATEMENT EXECUTE FUNCTION safety_changed();
CREATE TRIGGER kill_switch_changed AFTER INSERT OR UPDATE OR DELETE ON kill_switch
    FOR EACH STATEMENT EXECUTE FUNCTION safety_changed();
