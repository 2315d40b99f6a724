-- What stops an order, as queries that the planner merges into the statement that asks: one plan
-- instead of four calls. The rules are those of 0024 and 0016, which order_stop and market_stop
-- return as before, from tables read at the time of the call, also when the caller had to wait for
-- a lock. Each returns one row; its code is null when the order may leave.

-- Exits pass where entries do not: closing must not wait for a strategy to be switched on, nor for
-- a lockdown to end. Nothing passes when the whole account is off, and what was never switched on
-- is off. An order of the operator has no strategy whose switch could be off.
CREATE FUNCTION order_stops(
    at_broker text, of_account text, of_strategy text, of_intent_type text
) RETURNS TABLE (code text) STABLE LANGUAGE sql AS $$
    SELECT CASE
        WHEN NOT EXISTS (SELECT FROM kill_switch
                          WHERE broker = at_broker AND account = of_account AND scope = 'account'
                            AND strategy_key = '' AND trading_enabled) THEN 'KILL_SWITCH'
        WHEN of_intent_type <> 'ENTRY' THEN NULL
        WHEN of_strategy <> 'manual'
             AND NOT EXISTS (SELECT FROM kill_switch
                              WHERE broker = at_broker AND account = of_account
                                AND scope = 'strategy' AND strategy_key = of_strategy
                                AND trading_enabled) THEN 'STRATEGY_OFF'
        ELSE (SELECT CASE WHEN state NOT IN ('NORMAL', 'WARNING') THEN 'SAFETY_' || state END
                FROM (SELECT COALESCE((SELECT state FROM safety_state
                                        WHERE broker = at_broker AND account = of_account),
                                      'LOCKDOWN') AS state) AS safety) END
$$;

-- The whole venue's suspension before the symbol's own. Exits pass a suspension of their symbol. A
-- frozen one lets out what stops or the operator ask for, and nothing that a strategy wants.
CREATE FUNCTION market_stops(
    at_broker text, of_account text, of_symbol text, of_intent_type text
) RETURNS TABLE (code text) STABLE LANGUAGE sql AS $$
    SELECT (SELECT CASE WHEN NOT CASE reason_code
                   WHEN 'FROZEN' THEN of_intent_type NOT IN ('ENTRY', 'EXIT_SIGNAL', 'EXIT_TP')
                   ELSE of_intent_type <> 'ENTRY' AND symbol <> '*' END
                   THEN 'MARKET_' || reason_code END
              FROM market_state
             WHERE broker = at_broker AND account = of_account AND symbol IN ('*', of_symbol)
               AND trade_status = 'SUSPENDED'
             ORDER BY symbol <> '*' LIMIT 1)
$$;

CREATE OR REPLACE FUNCTION order_stop(
    at_broker text, of_account text, of_strategy text, of_intent_type text
) RETURNS text VOLATILE LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT code FROM order_stops(at_broker, of_account, of_strategy, of_intent_type));
END $$;

CREATE OR REPLACE FUNCTION market_stop(
    at_broker text, of_account text, of_symbol text, of_intent_type text
) RETURNS text VOLATILE LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT code FROM market_stops(at_broker, of_account, of_symbol, of_intent_type));
END $$;
