-- Stops and holdings of an account: what the stops computed of a position, and what the account
-- held before QTS traded it.

-- The state belongs to the position that was opened at `opened_at`: another one begins anew. It is
-- written within a second of a change, and read at the start. Prices are those of the stops, in
-- double precision.
CREATE TABLE position_stop (
    broker      text             NOT NULL,
    account     text             NOT NULL,
    symbol      text             NOT NULL,
    opened_at   timestamptz      NOT NULL,
    quantity    double precision NOT NULL,
    average     double precision NOT NULL,
    watched     boolean          NOT NULL DEFAULT true,   -- false: adopted without stops
    from_market boolean          NOT NULL DEFAULT false,  -- the reference is the next price
    reference   double precision CHECK (reference > 0),   -- of gains and losses; null: the average
    adopted_at  timestamptz,                              -- the last adoption that concerned it
    best        double precision,                         -- null: no stop has seen it yet
    worst       double precision,
    trail       double precision NOT NULL DEFAULT 0,
    armed       boolean          NOT NULL DEFAULT false,
    half_sold   boolean          NOT NULL DEFAULT false,
    dust        boolean          NOT NULL DEFAULT false,  -- too small for the venue to sell
    updated_at  timestamptz      NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (broker, account, symbol),
    CHECK ((best IS NULL) = (worst IS NULL)),
    CHECK (NOT from_market OR reference IS NULL)
);

-- Holdings that QTS did not buy. They are in no position, so that no strategy and no stop sells
-- them; a row ends when the holding is sold or adopted.
CREATE TABLE baseline_holding (
    broker        text           NOT NULL,
    account       text           NOT NULL,
    symbol        text           NOT NULL,
    quantity      numeric(38,18) NOT NULL CHECK (quantity > 0),
    average_price numeric(38,18) NOT NULL CHECK (average_price >= 0),  -- 0: unknown
    seen_at       timestamptz    NOT NULL,
    updated_at    timestamptz    NOT NULL,
    PRIMARY KEY (broker, account, symbol)
);

-- When the holdings of an account were first read: only then what differs is a baseline at once.
CREATE TABLE account_baseline (
    broker   text        NOT NULL,
    account  text        NOT NULL,
    taken_at timestamptz NOT NULL,
    PRIMARY KEY (broker, account)
);
