-- Instruments as the venues list them; a row stays when its symbol is delisted, so that a position
-- or an old order keeps its name and rules. A row is listed when last_seen_at is the newest of its
-- venue and environment.

CREATE TABLE instrument (
    venue           text        NOT NULL,
    environment     text        NOT NULL CHECK (environment IN ('real', 'simulator')),
    symbol          text        NOT NULL,
    market          text        NOT NULL,
    board           text        NOT NULL,
    name            text        NOT NULL,
    name_en         text        NOT NULL,
    currency        text        NOT NULL,
    class           text        NOT NULL,
    tick_table      text        NOT NULL,
    lot             numeric     NOT NULL CHECK (lot > 0),
    min_order_value numeric     NOT NULL CHECK (min_order_value >= 0),
    session         text        NOT NULL,
    sale_tax        numeric     NOT NULL CHECK (sale_tax >= 0),
    base_price      numeric,
    listed_shares   bigint,
    halted          boolean     NOT NULL,
    administrative  boolean     NOT NULL,
    liquidation     boolean     NOT NULL,
    caution         boolean     NOT NULL,
    first_seen_at   timestamptz NOT NULL,
    last_seen_at    timestamptz NOT NULL,
    PRIMARY KEY (venue, environment, symbol)
);

CREATE INDEX instrument_symbol ON instrument (symbol, last_seen_at DESC);
