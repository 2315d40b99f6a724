"""PostgreSQL: the pool, transactions, notifications and numbered migrations."""

from qts.database.config import DatabaseConfig
from qts.database.connection import Connection, Isolation, Row, savepoint
from qts.database.listener import Listener, Listening, Notification
from qts.database.migrations import Applied, Migration, MigrationStatus, migrate, status
from qts.database.pool import Database, Ping

__all__ = [
    "Applied",
    "Connection",
    "Database",
    "DatabaseConfig",
    "Isolation",
    "Listener",
    "Listening",
    "Migration",
    "MigrationStatus",
    "Notification",
    "Ping",
    "Row",
    "migrate",
    "savepoint",
    "status",
]
