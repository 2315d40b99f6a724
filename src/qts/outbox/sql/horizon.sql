-- From where on to look; see the function.
-- $1 stream, $2 is it ordered, $3 due from, $4 first id, $5 $6 $7 the mark set by the last call
SELECT due_from, first_id, mark_at, mark_id, mark_xid
  FROM outbox_horizon($1, $2, $3, $4, $5, $6, $7)
