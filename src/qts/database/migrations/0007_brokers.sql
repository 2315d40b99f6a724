-- The paper venue's own books, and what was seen of fills at KIS, which numbers none.

CREATE TABLE paper_book (
    name text PRIMARY KEY,
    epoch bigint NOT NULL,  -- counts openings: who holds an older one writes no more
    opened_at timestamptz NOT NULL
);

CREATE TABLE paper_account (
    book text NOT NULL REFERENCES paper_book,
    symbol text NOT NULL,  -- KRW is the cash
    quantity numeric NOT NULL,
    cost numeric NOT NULL,
    PRIMARY KEY (book, symbol),
    CHECK (symbol = 'KRW' OR quantity >= 0)
);

CREATE TABLE paper_order (
    order_id text PRIMARY KEY,
    book text NOT NULL REFERENCES paper_book,
    identifier text NOT NULL,
    symbol text NOT NULL,
    side text NOT NULL CHECK (side IN ('BUY', 'SELL')),
    type text NOT NULL CHECK (type IN ('LIMIT', 'MARKET')),
    quantity numeric NOT NULL CHECK (quantity > 0),
    price numeric CHECK (price > 0),
    filled numeric NOT NULL DEFAULT 0 CHECK (filled BETWEEN 0 AND quantity),
    state text NOT NULL DEFAULT 'OPEN' CHECK (state IN ('OPEN', 'FILLED', 'CANCELLED')),
    placed_at timestamptz NOT NULL,
    UNIQUE (book, identifier),
    CHECK ((type = 'LIMIT') = (price IS NOT NULL)),
    CHECK ((state = 'FILLED') = (filled = quantity))
);
CREATE INDEX paper_order_open ON paper_order (book) WHERE state = 'OPEN';
CREATE INDEX paper_order_placed ON paper_order (book, placed_at);

CREATE TABLE paper_fill (
    trade_id text PRIMARY KEY,
    number bigint GENERATED ALWAYS AS IDENTITY,
    order_id text NOT NULL REFERENCES paper_order,
    book text NOT NULL REFERENCES paper_book,
    symbol text NOT NULL,
    side text NOT NULL CHECK (side IN ('BUY', 'SELL')),
    quantity numeric NOT NULL CHECK (quantity > 0),
    price numeric NOT NULL CHECK (price > 0),
    fee numeric NOT NULL CHECK (fee >= 0),
    at timestamptz NOT NULL
);
CREATE INDEX paper_fill_at ON paper_fill (book, at, number);
CREATE INDEX paper_fill_order ON paper_fill (order_id);

-- A fill, its order and the account change together, and a fill written twice changes nothing.
CREATE FUNCTION paper_settle() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    amount numeric := NEW.price * NEW.quantity;
    sign integer := CASE NEW.side WHEN 'BUY' THEN 1 ELSE -1 END;
BEGIN
    UPDATE paper_order SET filled = filled + NEW.quantity,
        state = CASE WHEN filled + NEW.quantity = quantity THEN 'FILLED' ELSE state END
    WHERE order_id = NEW.order_id AND state = 'OPEN';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'paper order % is not open: % cannot fill it', NEW.order_id, NEW.trade_id
            USING ERRCODE = 'check_violation';
    END IF;
    UPDATE paper_account SET quantity = quantity - sign * amount - NEW.fee
    WHERE book = NEW.book AND symbol = 'KRW';
    INSERT INTO paper_account (book, symbol, quantity, cost)
    VALUES (NEW.book, NEW.symbol, 0, 0) ON CONFLICT DO NOTHING;
    UPDATE paper_account SET quantity = quantity + sign * NEW.quantity,
        cost = CASE WHEN sign > 0 THEN cost + amount
                    ELSE cost * (quantity - NEW.quantity) / nullif(quantity, 0) END
    WHERE book = NEW.book AND symbol = NEW.symbol;
    RETURN NULL;
END $$;
CREATE TRIGGER paper_fill_settles AFTER INSERT ON paper_fill
    FOR EACH ROW EXECUTE FUNCTION paper_settle();

CREATE FUNCTION paper_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'paper order %: % with % filled cannot become % with %',
        OLD.order_id, OLD.state, OLD.filled, NEW.state, NEW.filled
        USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER paper_order_goes BEFORE UPDATE ON paper_order FOR EACH ROW
    WHEN (OLD.state <> 'OPEN' OR NEW.filled < OLD.filled)
    EXECUTE FUNCTION paper_refuse();

-- How far an order at KIS was filled whenever that was seen to have grown; each step is one fill.
CREATE TABLE kis_step (
    account text NOT NULL,  -- a digest, not the number
    order_id text NOT NULL,
    filled numeric NOT NULL CHECK (filled > 0),
    amount numeric NOT NULL CHECK (amount > 0),
    symbol text NOT NULL,
    side text NOT NULL CHECK (side IN ('BUY', 'SELL')),
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (account, order_id, filled)
);
CREATE INDEX kis_step_seen ON kis_step (account, seen_at);
