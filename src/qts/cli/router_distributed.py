"""`qts dev router source` and `sink`: two halves of a router run, joined by NATS JetStream."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from qts.cli.console import JsonFile, JsonFileOption
from qts.domain import Secret, parse_duration

if TYPE_CHECKING:
    from qts.router import EdgeConfig, Scenario, Sink, Source

ScenarioDurationOption = Annotated[
    str | None,
    typer.Option(
        "--duration", "--for", metavar="TIME", help="Instead of the scenario's: 500ms, 5s, 2m."
    ),
]
ScenarioArgument = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="The same on both sides: a name or a JSON file.")
]
RunOption = Annotated[str, typer.Option("--run", metavar="NAME", help="The same on both sides.")]
NatsOption = Annotated[
    str,
    typer.Option(
        "--nats",
        metavar="URL",
        envvar="QTS_NATS_URL",
        help="nats://host:4222; put one with a password into the environment.",
    ),
]
TimeoutOption = Annotated[
    str,
    typer.Option(
        "--timeout", "--patience", metavar="TIME", help="How long the other side may be silent."
    ),
]


def source(
    scenario: ScenarioArgument,
    run: RunOption,
    nats: NatsOption,
    duration: ScenarioDurationOption = None,
    timeout: TimeoutOption = "10s",
    json_file: JsonFileOption = None,
) -> int:
    """Run producers, Stage 1 and processors; PASSED once the sink has confirmed everything.

    Example: qts dev router source baseline --run monday --duration 5s
    """
    output, edge = JsonFile(json_file), _edge(nats, run, timeout)
    selected = _select(scenario, duration)

    from qts.router import Source

    return _run(Source(selected, edge), output)


def sink(
    scenario: ScenarioArgument,
    run: RunOption,
    nats: NatsOption,
    timeout: TimeoutOption = "10s",
    json_file: JsonFileOption = None,
) -> int:
    """Run Stage 2 and strategies; resumes where an earlier sink of the same run ended.

    Example: qts dev router sink baseline --run monday
    """
    output, edge = JsonFile(json_file), _edge(nats, run, timeout)
    selected = _select(scenario, None)

    from qts.router import Sink

    return _run(Sink(selected, edge), output)


def _edge(nats: str, run: str, timeout: str) -> EdgeConfig:
    from qts.router import EdgeConfig

    return EdgeConfig(url=Secret(nats), run=run, timeout_s=parse_duration(timeout))


def _select(name: str, duration: str | None) -> Scenario:
    from msgspec.structs import replace

    from qts.router import load_scenario

    scenario = load_scenario(name)
    if duration is None:
        return scenario
    return replace(scenario, duration_secs=parse_duration(duration))


def _run(half: Source | Sink, output: JsonFile) -> int:
    from qts.router import ProgressLine, watch_run

    stream = sys.stderr if output.prints else sys.stdout
    print(half.router.plan.render(), file=stream, flush=True)
    half.start()
    watch_run(half, ProgressLine(stream))
    report = half.report
    print(report.render(), file=stream, flush=True)
    output.write(report.to_json())
    return 0 if report.verdict == "PASSED" else 1
