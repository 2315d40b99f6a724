"""The errors of QTS, as a tree.

    QtsError
    ├── Refused             bad input: nothing was done, exit code 2
    │   ├── ConfigError     a settings file or an environment override
    │   ├── HomeInUse       another QTS runs on this home directory
    │   └── SchemaTooNew    the database was migrated by a newer QTS
    └── Failed              asked for rightly, could not be done, exit code 1
        ├── ServerFailed    an embedded server did not start or died
        └── Unreachable     a server named in the settings does not answer

Errors of other libraries are translated into these at the seam where they occur.
"""

from __future__ import annotations


class QtsError(Exception):
    """Every error QTS raises on purpose; its text is one line a user can act on."""

    exit_code = 1


class Refused(QtsError):
    exit_code = 2


class ConfigError(Refused):
    pass


class HomeInUse(Refused):
    pass


class SchemaTooNew(Refused):
    pass


class Failed(QtsError):
    pass


class ServerFailed(Failed):
    pass


class Unreachable(Failed):
    pass
