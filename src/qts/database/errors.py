"""Translation of asyncpg errors; SQL errors (a violated constraint, a typo) pass unchanged."""

from __future__ import annotations

import socket
from typing import Any

from asyncpg import InterfaceError, InternalClientError, PostgresError, QueryCanceledError

from qts.domain import OperationError, OutcomeUnknownError, UnreachableError

# Errors caused by the server, the network or the session. InternalClientError: the server sent its
# final error while no statement was running, before the end of the connection.
DRIVER_ERRORS = (PostgresError, InterfaceError, InternalClientError, OSError, TimeoutError)

# 57P0x: shutdown, crash, startup, dropped, idle too long; 25P03 and 25P04: a transaction that idled
# or lasted too long. Class 08 is the connection itself.
_ENDED = {"57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04"}

# 25006: read-only, as a standby. Class 53: out of disk, memory, connections or another resource.
_READ_ONLY, _NO_RESOURCES = "25006", "53"


def is_gone(connection: Any) -> bool:
    """Return whether the connection is closed, or its pool has dropped it."""
    try:
        return bool(connection.is_closed())
    except InterfaceError:
        return True


def is_lost(error: BaseException, connection: Any) -> bool:
    """Return whether the error means a lost connection rather than a bad statement."""
    if isinstance(error, PostgresError):
        state = error.sqlstate or ""
        return state.startswith("08") or state in _ENDED
    if isinstance(error, InternalClientError):
        return True
    return isinstance(error, InterfaceError) and is_gone(connection)


def unreachable(where: str, error: BaseException) -> UnreachableError:
    return UnreachableError(f"PostgreSQL at {where} is unreachable: {reason(error)}")


def outcome_unknown(where: str, error: BaseException) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"connection to PostgreSQL at {where} was lost during a write: {reason(error)}; "
        "whether it was committed is not known"
    )


def cancelled(where: str, error: QueryCanceledError, limit_s: float) -> OperationError:
    return OperationError(
        f"PostgreSQL at {where} cancelled a statement: {reason(error)} "
        f"(database.statement_timeout_s is {limit_s:g})"
    )


def is_read_only(error: BaseException) -> bool:
    """Return whether the server answers but cannot write."""
    state = (error.sqlstate or "") if isinstance(error, PostgresError) else ""
    return state == _READ_ONLY or state.startswith(_NO_RESOURCES)


def cannot_write(where: str, error: BaseException) -> OperationError:
    return OperationError(
        f"PostgreSQL at {where} cannot write: {reason(error)}; nothing was changed"
    )


def lock_timeout(where: str, limit_s: float) -> OperationError:
    return OperationError(
        f"PostgreSQL at {where}: no lock within {limit_s:g} s "
        "(database.idle_transaction_timeout_s); nothing was changed"
    )


def reason(error: BaseException) -> str:
    """Describe the error in one line."""
    if isinstance(error, socket.gaierror):
        return "the host name is not known"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).splitlines() or [type(error).__name__])[0]
