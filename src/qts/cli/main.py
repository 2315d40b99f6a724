"""The `qts` command: its table of commands, and the run of one command line.

`qts --help` prints the table without importing a command's module; a test compares every line
with the help of its command. Every error becomes one line and an exit code.
"""

from __future__ import annotations

import gc
import re
import sys
import traceback
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

import qts
from qts.cli.groups import Entry, TableGroup
from qts.domain import QtsError, nearest_name

_DATA = {
    "observe": Entry("data:observe", "Watch a market and record it; no strategy, no orders"),
    "replay": Entry("data:replay", "Replay recorded ticks through the surge detector"),
    "export": Entry("data:export", "Write recorded ticks as one Parquet file"),
    "instruments": Entry("data:instruments", "List or search the instruments of a venue"),
    "download": Entry(
        "history:download",
        "Download past bars into the catalogue; run it again to continue or to update",
    ),
    "import": Entry("history:import_data", "Import bars or ticks of files into the catalogue"),
    "list": Entry("history:list_series", "List the bars and ticks in the catalogue"),
    "check": Entry("history:check", "Check the catalogue for damaged files and missing time"),
}
_OPS = {
    "outbox": Entry("outbox:app", "Durable message bus: status, dead letters, relay"),
    "dead-letters": Entry("lanes:dead_letters", "Events that used up their retries in the lanes"),
    "degrade": Entry("lanes:degrade", "Set the degradation level of the running QTS"),
    "cache": Entry("storage:cache", "Cache: status, one value, flush"),
    "database": Entry("storage:database", "Database schema: migrate, status"),
    "jobs": Entry("backtest:jobs", "Backtest jobs: list, show, work"),
    "state": Entry("storage:state", "States of strategies: list, clear"),
    "lease": Entry(
        "run:lease", "Show which run holds an account, its epoch, and which runs stand by"
    ),
    "handover": Entry(
        "run:handover", "Let the standby take over: the active run finishes its orders and ends"
    ),
    "notify": Entry("notify:notify", "Notifications: test a channel, status, recent messages"),
    "metrics": Entry("notify:metrics", "Files for Prometheus and Grafana"),
    "alerts": Entry("notify:alerts", "Alerts: list, acknowledge"),
    "actions": Entry("notify:actions", "List what operators did: who, what and why"),
    "backup": Entry("storage:backup", "Write the state to one file, also while QTS runs"),
    "restore": Entry("storage:restore", "Restore a backup into an empty home or database"),
}
_DEV = {
    "simulate": Entry("simulate:app", "Run a venue simulator: kis, upbit"),
    "router": Entry("router:app", "Message router: run a scenario, on one or two machines"),
    "lanes": Entry("lanes:lanes", "Flood the event lanes and show them live"),
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
        "backtest:backtest",
        "Run strategies over recorded or simulated ticks, or over bars",
        "Trade",
    ),
    "optimise": Entry(
        "optimise:optimise", "Search the parameters of a strategy over bars", "Trade"
    ),
    "orders": Entry(
        "orders:orders", "list, show, place, cancel, reconcile, resolve, freeze, resume", "Trade"
    ),
    "positions": Entry(
        "positions:positions", "List positions; close one or all; adopt a holding", "Trade"
    ),
    "kill": Entry("safety:kill", "Kill switch: on, off, status", "Trade"),
    "failsafe": Entry("safety:failsafe", "Fail-safe: status, release, codes", "Trade"),
    "top": Entry("dashboard:top", "Live status in the terminal", "Watch"),
    "dashboard": Entry(
        "dashboard:dashboard",
        "Live status in the browser; token, openapi: the API for programs",
        "Watch",
    ),
    "report": Entry(
        "report:report", "Profit, trades, refusals, incidents and latencies of a day", "Watch"
    ),
    "explain": Entry(
        "report:explain",
        "Why a day earned something else than its backtest, in parts that add up",
        "Watch",
    ),
    "config": Entry("config:app", "check, show, init", "Set up"),
    "doctor": Entry("doctor:doctor", "Check this machine", "Set up"),
    "setup": Entry(
        "setup:setup", "Ask for the key of a venue, check it there and store it", "Set up"
    ),
    "rehearse": Entry(
        "setup:rehearse",
        "Rehearse real orders at a venue, step by step; live trading needs it once a month",
        "Set up",
    ),
    "data": Entry(
        _DATA,
        "Market data: observe, replay, export, instruments, download, import, list, check",
        "More",
        "qts data observe --duration 60s --symbols symbols.txt",
    ),
    "ops": Entry(
        _OPS,
        "Operations: outbox, dead-letters, cache, database, jobs, notify, alerts, actions, backup",
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
    **{name: _DATA[name] for name in ("observe", "replay", "export")},
    **{
        name: entry
        for name, entry in _OPS.items()
        if name not in ("jobs", "state", "lease", "handover", "alerts", "actions")
    },
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


class _Root(TableGroup):
    table = COMMANDS


app = typer.Typer(
    name="qts",
    cls=_Root,
    help="QTS: watch a market, decide in Python, send orders through a durable outbox.",
    epilog="Example: qts run --duration 60s",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _show_version(given: bool) -> None:
    if given:
        typer.echo(f"qts {qts.__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    _version: bool = typer.Option(
        False,
        "--version",
        callback=_show_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
    _debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    # A tenth of a start is collections among the objects of imports, which all stay.
    gc.set_threshold(10_000, *gc.get_threshold()[1:])
    sys.exit(run_command(sys.argv[1:] if arguments is None else arguments))


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code: 0 done, 1 failed, 2 refused."""
    debug = "--debug" in arguments
    rest = [argument for argument in arguments if argument != "--debug"]
    try:
        result = typer.main.get_command(app).main(rest, prog_name="qts", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except TyperException as error:
        return _fail(error, _usage_line(error), 2, debug)
    except QtsError as error:
        return _fail(error, str(error), error.exit_code, debug)
    except (KeyboardInterrupt, typer.Abort) as error:
        return _fail(error, "interrupted", 130, debug)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has closed the pipe
        return 1
    except Exception as error:  # noqa: BLE001 - the last stop: a bug becomes one line, not a traceback
        line = f"internal error, {type(error).__name__}: {error} (add --debug for the traceback)"
        return _fail(error, line, 1, debug)


def _fail(error: BaseException, line: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    for text in line.splitlines() or [type(error).__name__]:
        print(f"qts: {text}", file=sys.stderr)
    return code


def _usage_line(error: TyperException) -> str:
    context = getattr(error, "ctx", None)
    message = getattr(error, "format_message", error.__str__)()
    hint = f" (see '{context.command_path} --help')" if context else ""
    return _with_nearest(" ".join(message.split())) + hint


_NOT_A_CHOICE = re.compile(r"(?:Value error, )?('([^']*)' is not one of ((?:'[^']*'(?:, )?)+))\.?$")


def _with_nearest(message: str) -> str:
    """Add the most similar choice, where the message names what was given and the choices."""
    found = _NOT_A_CHOICE.search(message)
    if found is None:
        return message
    near = nearest_name(found[2], re.findall("'([^']*)'", found[3]))
    question = f"; did you mean {near}?" if near else ""
    return message[: found.start()] + found[1] + question
