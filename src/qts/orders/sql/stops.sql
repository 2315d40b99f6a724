-- Why an attempt must not leave now; null when it may.
-- $1 strategy, $2 intent type, $3 broker, $4 symbol
SELECT COALESCE(order_stop($1, $2), market_stop($3, $4, $2))
