-- Every connection carries this limit now (database.idle_transaction_timeout_s).

DROP FUNCTION orders_in_time();
