-- When the next attempt is due to be looked for; null when none is.
-- $1 broker, $2 now, $3 how long a sender has, $4 pause between two looks
SELECT min(GREATEST($2::timestamptz + $4::interval,
                    CASE status WHEN 'SENT' THEN sent_at + $3::interval END))
  FROM order_attempt
 WHERE broker = $1 AND status IN ('SENT', 'UNKNOWN') AND NOT needs_person
