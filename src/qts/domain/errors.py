"""The errors of QTS, as a tree.

    QtsError
    ├── Refused             bad input: nothing was done, exit code 2
    │   ├── ConfigError     a settings file or an environment override
    │   ├── HomeInUse       another QTS runs on this home directory
    │   ├── ScenarioError   a router scenario that contradicts itself or cannot be read
    │   └── SchemaTooNew    the database was migrated by a newer QTS
    └── Failed              asked for rightly, could not be done, exit code 1
        ├── ServerFailed    an embedded server did not start or died
        └── Unreachable     a server named in the settings does not answer
            └── OutcomeUnknown  it was lost while it wrote: the change may have been kept

Errors of other libraries are translated into these at the seam where they occur.
"""

from __future__ import annotations


class QtsError(Exception):
    """Every error QTS raises on purpose; its text is one line a user can act on."""

    exit_code = 1


class Refused(QtsError):  # noqa: N818 - named for what happened, as users say it
    exit_code = 2


class ConfigError(Refused):
    pass


class HomeInUse(Refused):
    pass


class ScenarioError(Refused):
    pass


class SchemaTooNew(Refused):
    pass


class Failed(QtsError):  # noqa: N818 - the same
    pass


class ServerFailed(Failed):
    pass


class Unreachable(Failed):
    pass


class OutcomeUnknown(Unreachable):
    pass
