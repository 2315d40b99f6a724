-- An order may be stored as SENT, and its command as claimed by the process that sends it: one
-- statement, one commit, then the request. docs/decisions/0002-outbox-and-one-commit.md says why.

DROP TRIGGER order_attempt_begins ON order_attempt;
CREATE TRIGGER order_attempt_begins AFTER INSERT ON order_attempt FOR EACH ROW
    WHEN (NEW.status NOT IN ('PREPARED', 'SENT'))
    EXECUTE FUNCTION orders_refuse('this beginning');

DROP TRIGGER outbox_event_begins ON outbox_event;
CREATE TRIGGER outbox_event_begins AFTER INSERT ON outbox_event FOR EACH ROW
    WHEN (NOT ((NEW.status = 'PENDING' AND NEW.attempt_count = 0)
               OR (NEW.status = 'PROCESSING' AND NEW.attempt_count = 1)))
    EXECUTE FUNCTION outbox_refuse('this beginning');
