-- $1 broker, $2 taken at, $3 cash, $4 holdings
INSERT INTO account_snapshot (broker, taken_at, cash, holdings) VALUES ($1, $2, $3, $4)
