-- The lock of an account becomes a lease: its epoch rises with each holder, and every statement of
-- a run that sends, or that changes a stop or a switch, compares it (qts/brokers/lease.py).

ALTER TABLE account
    ADD COLUMN holder        uuid,                        -- of the lease; null: never held
    ADD COLUMN application   text NOT NULL DEFAULT '',    -- application_name of its sessions
    ADD COLUMN send_within_s float8 NOT NULL DEFAULT 1,   -- a request of the holder leaves within
    ADD COLUMN released_at   timestamptz,                 -- the holder has ended its requests
    ADD COLUMN handover_at   timestamptz;                 -- the operator asked it to release

ALTER TABLE order_attempt ADD COLUMN epoch bigint;        -- of the lease that it was sent under

-- Whether a run may write: its epoch is the account's, and stays so until its transaction ends.
-- A command of the operator has no epoch.
CREATE FUNCTION lease_holds(at_broker text, of_account text, of_epoch bigint) RETURNS boolean
VOLATILE LANGUAGE plpgsql AS $$
BEGIN
    IF of_epoch IS NULL THEN
        RETURN true;
    END IF;
    PERFORM FROM account
      WHERE broker = at_broker AND account = of_account AND epoch = of_epoch FOR SHARE;
    RETURN FOUND;
END $$;
