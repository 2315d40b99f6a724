-- Still at it: keep the locks of these claims.
-- $1 ids, $2 tokens, $3 lock time, $4 even those that ran out
--
-- Where order matters a lock that ran out stays lost: somebody may have taken up the head of its
-- line meanwhile.
UPDATE outbox_event
   SET locked_until = clock_timestamp() + $3::interval, updated_at = clock_timestamp()
 WHERE id = ANY ($1::bigint[]) AND locked_by = ANY ($2::text[])
   AND ($4 OR locked_until >= clock_timestamp())
RETURNING id
