-- Orders of the operator, which the run of the account carries out. The row and its command on the
-- bus are one transaction; the id is the requester's, so that a repeated request is the same one.
--
--   REQUESTED ──▶ STARTED ──▶ DONE · REFUSED · FAILED
--        └──▶ EXPIRED         no run took it before its deadline, or it was withdrawn
CREATE TABLE manual_command (
    id           uuid        PRIMARY KEY,
    broker       text        NOT NULL,
    account      text        NOT NULL,
    request      jsonb       NOT NULL,
    actor        text        NOT NULL,
    reason       text        NOT NULL,
    action_id    bigint,  -- its row in dashboard_action, ended with it
    state        text        NOT NULL DEFAULT 'REQUESTED'
                 CHECK (state IN ('REQUESTED', 'STARTED', 'DONE', 'REFUSED', 'FAILED', 'EXPIRED')),
    result       jsonb,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at   timestamptz NOT NULL,
    started_at   timestamptz,
    ended_at     timestamptz,
    CHECK ((ended_at IS NULL) = (state IN ('REQUESTED', 'STARTED')))
);
CREATE INDEX manual_command_at ON manual_command (requested_at);

CREATE FUNCTION manual_command_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a manual command that has ended does not change' USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER manual_command_stays BEFORE UPDATE ON manual_command FOR EACH ROW
    WHEN (OLD.ended_at IS NOT NULL
        OR (OLD.id, OLD.broker, OLD.account, OLD.request, OLD.actor, OLD.reason, OLD.expires_at)
            IS DISTINCT FROM
           (NEW.id, NEW.broker, NEW.account, NEW.request, NEW.actor, NEW.reason, NEW.expires_at))
    EXECUTE FUNCTION manual_command_is_kept();

-- As in 0016, and: an order of the operator has no strategy whose switch could be off.
CREATE OR REPLACE FUNCTION order_stop(
    at_broker text, of_account text, of_strategy text, of_intent_type text
) RETURNS text VOLATILE LANGUAGE plpgsql AS $$
DECLARE
    safety text;
BEGIN
    IF NOT EXISTS (SELECT FROM kill_switch
                    WHERE broker = at_broker AND account = of_account AND scope = 'account'
                      AND trading_enabled) THEN
        RETURN 'KILL_SWITCH';
    ELSIF of_intent_type <> 'ENTRY' THEN
        RETURN NULL;
    ELSIF of_strategy <> 'manual'
          AND NOT EXISTS (SELECT FROM kill_switch
                           WHERE broker = at_broker AND account = of_account AND scope = 'strategy'
                             AND strategy_key = of_strategy AND trading_enabled) THEN
        RETURN 'STRATEGY_OFF';
    END IF;
    safety := COALESCE((SELECT state FROM safety_state
                         WHERE broker = at_broker AND account = of_account), 'LOCKDOWN');
    RETURN CASE WHEN safety NOT IN ('NORMAL', 'WARNING') THEN 'SAFETY_' || safety END;
END $$;
