"""`qts distributed`: one half of a router run here, the other half on another machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from qts.cli.console import JsonFile
from qts.domain import Secret, parse_duration
from qts.router import ProgressLine, Scenario, load_scenario, watch_run

if TYPE_CHECKING:
    from qts.router import EdgeConfig, Sink, Source

app = typer.Typer(
    help="A router run on two machines, joined by NATS JetStream.",
    epilog="Example: qts distributed sink baseline --run monday",
    no_args_is_help=True,
)

ScenarioName = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="The same on both sides: a name or a JSON file.")
]
Run = Annotated[str, typer.Option("--run", metavar="NAME", help="The same on both sides.")]
Url = Annotated[
    str,
    typer.Option(
        "--nats",
        metavar="URL",
        envvar="QTS_NATS_URL",
        help="nats://host:4222; one with a password belongs in the environment.",
    ),
]
Duration = Annotated[
    str | None,
    typer.Option("--duration", metavar="SPAN", help="Instead of the scenario's: 500ms, 5s."),
]
Patience = Annotated[
    str, typer.Option("--patience", metavar="SPAN", help="How long the other side may be silent.")
]
Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the report; - is standard output."),
]


@app.command()
def source(
    scenario: ScenarioName,
    run: Run,
    nats: Url,
    duration: Duration = None,
    patience: Patience = "10s",
    json_file: Json = None,
) -> int:
    """Producers, Stage 1 and processors; PASSED once the sink has confirmed everything.

    Example: qts distributed source baseline --run monday --duration 5s
    """
    report, edge = JsonFile(json_file), _edge(nats, run, patience)
    chosen = _chosen(scenario, duration)

    from qts.router import Source  # the C++ core, not before it is needed

    return _see_through(Source(chosen, edge), report)


@app.command()
def sink(
    scenario: ScenarioName,
    run: Run,
    nats: Url,
    patience: Patience = "10s",
    json_file: Json = None,
) -> int:
    """Stage 2 and strategies; goes on where an earlier sink of the run was cut off.

    Example: qts distributed sink baseline --run monday
    """
    report, edge = JsonFile(json_file), _edge(nats, run, patience)
    chosen = _chosen(scenario, None)

    from qts.router import Sink

    return _see_through(Sink(chosen, edge), report)


def _edge(nats: str, run: str, patience: str) -> EdgeConfig:
    from qts.router import EdgeConfig

    return EdgeConfig(url=Secret(nats), run=run, patience_s=parse_duration(patience))


def _chosen(name: str, duration: str | None) -> Scenario:
    scenario = load_scenario(name)
    if duration is None:
        return scenario
    return msgspec.structs.replace(scenario, duration_secs=parse_duration(duration))


def _see_through(half: Source | Sink, file: JsonFile) -> int:
    stream = sys.stderr if file.prints else sys.stdout
    print(half.router.plan.render(), file=stream, flush=True)
    half.start()
    watch_run(half, ProgressLine(stream))
    report = half.report
    print(report.render(), file=stream, flush=True)
    file.write(report.to_json())
    return 0 if report.verdict == "PASSED" else 1
