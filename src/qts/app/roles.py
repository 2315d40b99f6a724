"""Roles of a system, each in a separate process: what they need, and how one is opened."""

from __future__ import annotations

import contextlib

from qts.app.account_configs import account_configs
from qts.app.feed_role import OpenRole, RoleParts, open_feed_role
from qts.app.simulated_venue import uses_simulated_venue
from qts.app.strategies_role import StrategiesRole
from qts.config import Config
from qts.domain import RefusedError
from qts.roles import Role, check_nats

ROLES: tuple[Role, ...] = ("all", "feed", "strategies", "execution")


def check_role(config: Config, role: Role, *, standby: bool) -> None:
    """Refuse settings that the processes of a system cannot share."""
    if role == "all":
        return
    if standby and role != "execution":
        raise RefusedError(
            f"--standby with --role {role}: expected --role execution; a second feed is a spare"
            " without it, and strategies are restarted"
        )
    if config.database.url is None:
        raise RefusedError(f"--role {role} needs database.url: the PostgreSQL of all roles")
    if config.pipeline.journal is not None:
        raise RefusedError(
            f"pipeline.journal is {config.pipeline.journal}: a journal has the ticks, decisions"
            f" and orders of one process; expected it unset with --role {role}"
        )
    for account in account_configs(config):
        if uses_simulated_venue(account):
            name = account.feed.venue_name
            raise RefusedError(
                f"--role {role}: venues.{name} has no key, and a simulator of one role serves no"
                f" other; set key and address of the venue, or of: qts dev simulate {name}"
            )
    check_nats(config.outbox.nats)


def open_role(role: Role, parts: RoleParts) -> contextlib.AbstractAsyncContextManager[OpenRole]:
    """Open the feed role or the strategies role."""
    return open_feed_role(parts) if role == "feed" else StrategiesRole(parts).open()
