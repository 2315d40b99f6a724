-- Whether somebody asked for its cancel.
-- $1 intent
SELECT cancel_requested_at IS NOT NULL FROM order_intent WHERE id = $1
