-- Changes that the operator must see become events of everbit.system.event, in the transaction of
-- the change, from every writer: a run, a command, the dashboard, a restore.
CREATE FUNCTION system_event(
    of_type text, of_aggregate_type text, of_aggregate text, of_account text, of_strategy text,
    payload jsonb
) RETURNS void VOLATILE LANGUAGE plpgsql AS $$
DECLARE
    millis bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
    -- A UUID of version 7: new rows extend the index at its end.
    id uuid := encode(set_bit(set_bit(
        overlay(uuid_send(gen_random_uuid()) PLACING substring(int8send(millis) FROM 3) FROM 1 FOR 6),
        52, 1), 53, 1), 'hex')::uuid;
BEGIN
    PERFORM outbox_publish(
        id, 'everbit.system.event', of_type, of_aggregate_type, of_aggregate, of_account,
        jsonb_build_object(
            'schemaVersion', 1,
            'eventId', id,
            'type', of_type,
            'occurredAt', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
            'traceId', replace(gen_random_uuid()::text, '-', ''),
            'ownerId', 'OWNER',
            'strategyKey', of_strategy,
            'market', NULL,
            'payload', payload)::text,
        10, 0, true);
END $$;

CREATE FUNCTION safety_log_published() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM system_event(
        'FailSafeChanged', 'Account', NEW.broker || ':' || NEW.account,
        NEW.broker || ':' || NEW.account, NULL,
        jsonb_build_object(
            'code', NEW.code, 'reason', NEW.message, 'before', NEW.state_before,
            'state', NEW.state_after, 'actor', NEW.actor));
    RETURN NULL;
END $$;
-- GR041 and GR075 change no state: holdings from before QTS, a position too small to be sold.
CREATE TRIGGER safety_log_published AFTER INSERT ON safety_log FOR EACH ROW
    WHEN (NEW.state_before <> NEW.state_after OR NEW.code IN ('GR041', 'GR075'))
    EXECUTE FUNCTION safety_log_published();

CREATE FUNCTION kill_switch_published() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM system_event(
        'KillSwitchChanged', 'Account', NEW.broker || ':' || NEW.account,
        NEW.broker || ':' || NEW.account, nullif(NEW.strategy_key, ''),
        jsonb_build_object(
            'scope', NEW.scope, 'strategyKey', nullif(NEW.strategy_key, ''),
            'tradingEnabled', NEW.trading_enabled, 'reason', NEW.reason, 'actor', NEW.changed_by));
    RETURN NULL;
END $$;
CREATE TRIGGER kill_switch_added AFTER INSERT ON kill_switch FOR EACH ROW
    EXECUTE FUNCTION kill_switch_published();
CREATE TRIGGER kill_switch_set AFTER UPDATE ON kill_switch FOR EACH ROW
    WHEN (OLD.changed_at IS DISTINCT FROM NEW.changed_at)
    EXECUTE FUNCTION kill_switch_published();

CREATE FUNCTION strategy_params_published() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM system_event(
        'StrategyParamsChanged', 'Strategy', NEW.strategy_key, '', NEW.strategy_key,
        jsonb_build_object(
            'strategyKey', NEW.strategy_key, 'params', NEW.params, 'version', NEW.version,
            'actor', NEW.changed_by));
    RETURN NULL;
END $$;
CREATE TRIGGER strategy_params_published AFTER INSERT OR UPDATE ON strategy_params FOR EACH ROW
    EXECUTE FUNCTION strategy_params_published();
