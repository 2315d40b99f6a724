"""Command groups: plain help pages, and commands whose module is loaded when they are used."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

_TYPES = {"str": "TEXT", "path": "PATH", "int": "N", "float": "N"}
_UNLISTED = re.compile(r"(, --patience| / --no-outcome-checked)\b")  # accepted, not shown


class Entry(NamedTuple):
    """One row of the command table: where a command is defined, and its line in the help."""

    target: str | Mapping[str, Entry]  # "module:name", or the commands of a group
    help: str = ""
    panel: str = "Commands"
    example: str = ""  # of a group that the table defines
    hidden: bool = False


class PlainCommand(TyperCommand):
    """A command whose help names options and values without Python types."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        if self.help:  # \b keeps an example on one line
            self.help = self.help.replace("\n\nExample:", "\n\n\b\nExample:")

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = super().collect_usage_pieces(ctx)
        return [piece.removesuffix("...").strip("{}") for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)


class PlainGroup(TyperGroup):
    """A group whose help lists its commands first; without a command it prints that help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        _write_parameters(self, ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as its base
        shown = {name: each for name, each in self.commands.items() if not each.hidden}
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary(command)) for name, command in shown.items()])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not self.invoke_without_command and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit(2)
        return super().parse_args(ctx, args)


class TableGroup(PlainGroup):
    """A group whose commands are listed in a table; its help needs none of their modules."""

    table: Mapping[str, Entry] = {}

    def __init__(self, *, table: Mapping[str, Entry] | None = None, **settings: Any) -> None:
        super().__init__(**{"rich_markup_mode": None, **settings})
        self.table = self.table if table is None else table
        self.commands = _Commands(self.table)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - as the base class has it
        return list(self.table)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as above
        shown = {name: entry for name, entry in self.table.items() if not entry.hidden}
        width = max(map(len, shown))
        for panel in dict.fromkeys(entry.panel for entry in shown.values()):
            rows = [(f"{n:<{width}}", e.help) for n, e in shown.items() if e.panel == panel]
            with formatter.section(panel):
                formatter.write_dl(rows)


class _Commands(MutableMapping[str, Any]):
    """The commands of a table by name, each loaded when it is first read."""

    def __init__(self, table: Mapping[str, Entry]) -> None:
        self._table = table
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, self._table[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def command_group(help: str, example: str, short_help: str | None = None) -> CommandGroup:  # noqa: A002 - Typer's word
    """Return a Typer application with plain help pages."""
    return CommandGroup(
        cls=PlainGroup,
        help=help,
        short_help=short_help,
        epilog=f"Example: {example}",
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
    )


class CommandGroup(typer.Typer):
    """A Typer application whose commands have plain help pages."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[..., Any]:
        return super().command(name, **{"cls": PlainCommand, **settings})


def summary(command: Any) -> str:
    """Return the line of a command in its group's help: its first sentence."""
    return str(command.get_short_help_str(limit=200)).rstrip(".")


def _load(name: str, entry: Entry) -> Any:
    if not isinstance(entry.target, str):
        return TableGroup(
            name=name,
            table=entry.target,
            help=entry.help,
            epilog=f"Example: {entry.example}",
            hidden=entry.hidden,
        )
    module, _, attribute = entry.target.partition(":")
    target = getattr(import_module(f"qts.cli.{module}"), attribute)
    if not isinstance(target, typer.Typer):
        single = CommandGroup(add_completion=False, rich_markup_mode=None)
        single.command(name, cls=getattr(target, "command_class", PlainCommand))(target)
        command: Any = typer.main.get_command(single)
    else:
        command = typer.main.get_group(target)
    command.name, command.hidden = name, entry.hidden
    return command


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    for title, kind in (("Arguments", "argument"), ("Options", "option")):
        records = [
            _plain(record, kind)
            for parameter in command.get_params(ctx)
            if parameter.param_type_name == kind and (record := parameter.get_help_record(ctx))
        ]
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


def _plain(record: tuple[str, str], kind: str) -> tuple[str, str]:
    """Write values as TEXT or N and ranges as `1 to 50`, not as Python types."""
    names, text = record
    if kind == "argument":
        names = names.partition(" <")[0]
    names = _UNLISTED.sub("", names)
    names = re.sub(r"<(\w+)(?: range)?>", lambda found: _TYPES.get(found[1], found[1]), names)
    names = re.sub(r"<([^<>]+)>", r"\1", names)
    text = re.sub(r"([\d.]+)<=x<=([\d.]+)", r"\1 to \2", text)
    return names, re.sub(r"x>=([\d.]+)", r"at least \1", text)
