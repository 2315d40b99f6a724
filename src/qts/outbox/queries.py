"""SQL statements of this package, from `queries.sql`."""

from qts.database import load_queries

SQL = load_queries("qts.outbox")
