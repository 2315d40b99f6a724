"""Server that the workers are forked from: it imports once what every trial needs.

A module without other imports of QTS, so that a command can start the server before it imports and
reads its own data: both happen at the same time.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

_IMPORTED = ("__main__", "qts.optimise.worker_pool")


def start_fork_server() -> ForkServerContext:
    """Start the server unless it runs, without waiting for it; it ends with this process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    forkserver.ensure_running()
    return context
