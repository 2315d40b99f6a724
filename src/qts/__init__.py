"""QTS: a self-hosted, event-driven trading runtime.

The house, top to bottom; a room imports only what stands below it:

    cli                  thin verbs
    app                  the composition root: settings become a running system
    config               one TOML file and the environment become one frozen Config
    router · cache       the native multi-stage pipeline · the latest of everything
    events · database · embedded
                         lanes P0 to P3 · PostgreSQL · servers for a machine that has none
    domain               clock, errors, secrets
    telemetry · machine  logs, metrics, traces · what this computer offers
    _native              the C++ core

docs/architecture.md says what belongs where.
"""

from typing import Any

__all__ = ["__version__"]
__version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":  # read when asked for: to look it up takes longer than all the rest
        from importlib.metadata import version

        return version("qts")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
