-- Wake the consumers of what was committed; the others are asked about again.
-- $1 transactions, $2 streams
SELECT xid,
       CASE status WHEN 'committed' THEN pg_notify('outbox ' || stream, '') END IS NOT NULL AS woken,
       status = 'in progress' AS open
  FROM (SELECT xid, stream, pg_xact_status(xid::text::xid8) AS status
          FROM unnest($1::bigint[], $2::text[]) AS v (xid, stream)) AS seen
