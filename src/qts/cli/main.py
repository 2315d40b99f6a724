"""The `qts` command: runs one command line; every error becomes one line and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

import qts
from qts.cli.commands import COMMANDS
from qts.cli.groups import TableGroup
from qts.domain import QtsError


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
    return " ".join(message.split()) + hint
