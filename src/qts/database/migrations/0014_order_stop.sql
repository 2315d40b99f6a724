-- What stops an order at the last moment. Whoever moves one asks in the same statement, and hears
-- of every switch that was thrown until then: these look at the tables anew at each call, also when
-- the statement had to wait for a lock.

-- Why an order must not leave, as a code; null when it may. Exits pass where entries do not:
-- closing must not wait for a strategy to be switched on, nor for a lockdown to end. Nothing passes
-- when the whole account is switched off, and what was never switched on is off.
CREATE FUNCTION order_stop(of_strategy text, of_intent_type text) RETURNS text
VOLATILE LANGUAGE plpgsql AS $$
DECLARE
    safety text;
BEGIN
    IF NOT EXISTS (SELECT FROM kill_switch WHERE scope = 'account' AND trading_enabled) THEN
        RETURN 'KILL_SWITCH';
    ELSIF of_intent_type <> 'ENTRY' THEN
        RETURN NULL;
    ELSIF NOT EXISTS (SELECT FROM kill_switch
                       WHERE scope = 'strategy' AND strategy_key = of_strategy
                         AND trading_enabled) THEN
        RETURN 'STRATEGY_OFF';
    END IF;
    safety := COALESCE((SELECT state FROM safety_state), 'LOCKDOWN');
    RETURN CASE WHEN safety NOT IN ('NORMAL', 'WARNING') THEN 'SAFETY_' || safety END;
END $$;

-- Why an order of a market must not leave: the whole venue's reason before the market's own. Exits
-- pass a suspension of their own market. A frozen one lets out what stops or a person ask for, and
-- nothing that a strategy wants.
CREATE FUNCTION market_stop(at_broker text, of_symbol text, of_intent_type text) RETURNS text
VOLATILE LANGUAGE plpgsql AS $$
DECLARE
    stop record;
    passes boolean;
BEGIN
    SELECT symbol, reason_code INTO stop
      FROM market_state
     WHERE broker = at_broker AND symbol IN ('*', of_symbol) AND trade_status = 'SUSPENDED'
     ORDER BY symbol <> '*' LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    passes := CASE stop.reason_code
              WHEN 'FROZEN' THEN of_intent_type NOT IN ('ENTRY', 'EXIT_SIGNAL', 'EXIT_TP')
              ELSE of_intent_type <> 'ENTRY' AND stop.symbol <> '*' END;
    RETURN CASE WHEN NOT passes THEN 'MARKET_' || stop.reason_code END;
END $$;
