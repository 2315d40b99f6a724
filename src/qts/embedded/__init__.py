"""PostgreSQL and Valkey for a machine that has none, as children of this process."""

from qts.embedded.binaries import Binary, find_binaries
from qts.embedded.config import EmbeddedConfig
from qts.embedded.home import Home, HomeLock, default_home
from qts.embedded.nats import Nats, NatsConfig
from qts.embedded.postgres import Postgres
from qts.embedded.servers import Servers
from qts.embedded.valkey import Valkey

__all__ = [
    "Binary",
    "EmbeddedConfig",
    "Home",
    "HomeLock",
    "Nats",
    "NatsConfig",
    "Postgres",
    "Servers",
    "Valkey",
    "default_home",
    "find_binaries",
]
