-- Whether the account and a strategy may trade; what was never set may not.
-- $1 strategy
SELECT COALESCE((SELECT trading_enabled FROM kill_switch WHERE scope = 'account'), false)
           AS account,
       COALESCE((SELECT trading_enabled FROM kill_switch
                  WHERE scope = 'strategy' AND strategy_key = $1), false) AS strategy,
       COALESCE((SELECT state FROM safety_state), 'LOCKDOWN') AS safety
