"""The table of commands: what a trader types at the top, the rest in three groups.

`qts --help` prints this table without importing a command's module; a test compares every line
with the help of its command.
"""

from __future__ import annotations

from qts.cli.groups import Entry

_DATA = {
    "observe": Entry("data:observe", "Watch a market and record it; no strategy, no orders"),
    "replay": Entry("data:replay", "Replay recorded ticks through the surge detector"),
    "export": Entry("data:export", "Write recorded ticks as one Parquet file"),
}
_OPS = {
    "outbox": Entry("outbox:app", "Durable message bus: status, dead letters, relay"),
    "dead-letters": Entry("dead_letters:app", "Events that used up their retries in the lanes"),
    "cache": Entry("cache:app", "Cache: status, one value, flush"),
    "database": Entry("database:app", "Database schema: migrate, status"),
    "jobs": Entry("jobs:app", "Backtest jobs: list, show, work"),
    "notify": Entry("notify:app", "Notifications: test a channel, status, recent messages"),
    "metrics": Entry("notify:metrics", "Files for Prometheus and Grafana"),
    "backup": Entry("database:backup", "Write the state to one file, also while QTS runs"),
    "restore": Entry("database:restore", "Restore a backup into an empty home or database"),
}
_DEV = {
    "simulate": Entry("simulate:app", "Run a venue simulator: kis, upbit"),
    "router": Entry("router:app", "Message router: run a scenario, on one or two machines"),
    "lanes": Entry("lanes_demo:lanes", "Flood the event lanes and show them live"),
    "verify": Entry("verify:app", "Measure a goal and print PASS or FAIL"),
    "bench": Entry("bench:bench", "Measure a package beside its peers"),
}
_NEW = {
    "run": Entry(
        "run:run",
        "Run the trading system; paper broker and simulated market by default",
        "Trade",
    ),
    "backtest": Entry(
        "backtest:backtest", "Run a strategy over recorded or simulated data", "Trade"
    ),
    "orders": Entry(
        "orders:orders", "list, show, cancel, reconcile, resolve, freeze, resume", "Trade"
    ),
    "positions": Entry("positions:positions", "List positions; adopt a holding", "Trade"),
    "kill": Entry("safety:kill", "Kill switch: on, off, status", "Trade"),
    "failsafe": Entry("safety:failsafe", "Fail-safe: status, release, codes", "Trade"),
    "top": Entry("view:top", "Live status in the terminal", "Watch"),
    "dashboard": Entry("view:dashboard", "Live status in the browser", "Watch"),
    "config": Entry("config:app", "check, show, init", "Set up"),
    "doctor": Entry("doctor:doctor", "Check this machine", "Set up"),
    "data": Entry(
        _DATA,
        "Market data: observe, replay, export",
        "More",
        "qts data observe --duration 60s --symbols symbols.txt",
    ),
    "ops": Entry(
        _OPS,
        "Operations: outbox, dead-letters, cache, database, jobs, notify, metrics, backup, restore",
        "More",
        "qts ops outbox status",
    ),
    "dev": Entry(
        _DEV,
        "Development: simulate, router, lanes, verify, bench",
        "More",
        "qts dev verify isolation --duration 60s",
    ),
}
_OLD = {
    **_DATA,
    **{name: entry for name, entry in _OPS.items() if name != "jobs"},
    "backtests": _OPS["jobs"],
    "simulate": _DEV["simulate"],
    "route": Entry("router:run"),
    "distributed": _DEV["router"],
    "events": Entry({"demo": _DEV["lanes"]}, _DEV["lanes"].help, example="qts dev lanes"),
    "verify": _DEV["verify"],
    "retrace": Entry("verify:decisions"),
    "bench": _DEV["bench"],
}

COMMANDS = _NEW | {name: entry._replace(hidden=True) for name, entry in _OLD.items()}
