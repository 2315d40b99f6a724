"""Errors of asyncpg turned into ours; SQL errors (a broken constraint, a typo) pass unchanged."""

from __future__ import annotations

import socket
from typing import Any

from asyncpg import InterfaceError, InternalClientError, PostgresError, QueryCanceledError

from qts.domain import OperationError, OutcomeUnknownError, UnreachableError

# What talking to a server can raise when the server, the network or the session is the cause.
# InternalClientError: the server's last words came while nothing was asked, and the end of the
# connection, which follows them, has not arrived yet.
DRIVER_ERRORS = (PostgresError, InterfaceError, InternalClientError, OSError, TimeoutError)

# 57P0x: shut down, crashed, starting up, dropped, idle too long; 25P03 and 25P04: ended inside
# a transaction that idled or lasted too long. Class 08 is the connection itself.
_ENDED = {"57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04"}


# 25006: read only, as a standby or a server that is being moved. Class 53: disk, memory,
# connections or another of its limits is used up.
_READ_ONLY, _USED_UP = "25006", "53"


def is_gone(connection: Any) -> bool:
    """The connection is closed, or its pool took it back because it was."""
    try:
        return bool(connection.is_closed())
    except InterfaceError:
        return True


def is_lost(error: BaseException, connection: Any) -> bool:
    """The error says that the connection ended, not that the statement was wrong."""
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
        f"PostgreSQL at {where} was lost while it wrote: {reason(error)}; "
        "whether the change was kept is not known"
    )


def cancelled(where: str, error: QueryCanceledError, limit_s: float) -> OperationError:
    return OperationError(
        f"PostgreSQL at {where} ended a statement: {reason(error)} "
        f"(database.statement_timeout_s is {limit_s:g})"
    )


def is_read_only(error: BaseException) -> bool:
    """The server is there and cannot write."""
    state = (error.sqlstate or "") if isinstance(error, PostgresError) else ""
    return state == _READ_ONLY or state.startswith(_USED_UP)


def refused_to_write(where: str, error: BaseException) -> OperationError:
    return OperationError(
        f"PostgreSQL at {where} takes no changes: {reason(error)}; nothing was changed"
    )


def held(where: str, limit_s: float) -> OperationError:
    return OperationError(
        f"PostgreSQL at {where}: others held what was asked for longer than {limit_s:g} s "
        "(database.idle_transaction_timeout_s); nothing was changed"
    )


def reason(error: BaseException) -> str:
    """What happened, in one line."""
    if isinstance(error, socket.gaierror):
        return "the host name is not known"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).splitlines() or [type(error).__name__])[0]
