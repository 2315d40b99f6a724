"""`qts optimise`: search the parameters of a strategy, and check them on bars not searched."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer
from msgspec.structs import replace

from qts.cli.backtest_options import (
    BacktestOptions,
    BarsOption,
    CallLimitOption,
    CashOption,
    FromOption,
    HtmlOption,
    InstrumentsOption,
    StopsOption,
    StrategyArgument,
    SymbolsOption,
    ToOption,
    VenueOption,
)
from qts.cli.cluster import SearchCommand, cluster_database
from qts.cli.console import ConfigOption, JsonFile, JsonFileOption, html_file, print_tables
from qts.cli.file_layout import (
    ColumnsOption,
    FileOptions,
    FileSymbolOption,
    MapOption,
    TimeframeOption,
    ZoneOption,
)
from qts.domain import RefusedError, check_name

if TYPE_CHECKING:
    from qts.backtest import DataSelection
    from qts.optimise import StudyFile, StudyInfo, StudyPlan, StudyResult, TrialContext

METHODS = ("grid", "random", "bayes")

DataArgument = Annotated[
    Path | None, typer.Argument(metavar="DATA", help="Files of bars: .csv, .parquet.")
]
ParamOption = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=RANGE",
        help="fast=2..20, margin=0..0.01:0.001, mode=a,b or length=5; repeatable.",
    ),
]
TrialsOption = Annotated[
    int | None,
    typer.Option(min=1, max=1_000_000, help="Trials of each fold; default 100, or the whole grid."),
]
MethodOption = Annotated[str, typer.Option(metavar="NAME", help="grid, random or bayes.")]
MetricOption = Annotated[
    str, typer.Option(metavar="NAME", help="sharpe, return, cagr, calmar or profit_factor.")
]
WalkForwardOption = Annotated[
    int, typer.Option("--walk-forward", min=1, max=1000, metavar="FOLDS", help="Number of folds.")
]
ShareOption = Annotated[
    float,
    typer.Option(
        "--out-of-sample", min=0.01, max=0.9, metavar="SHARE", help="Last part of each fold."
    ),
]
ProcessesOption = Annotated[
    int | None, typer.Option(min=1, max=256, help="Default: one for each CPU.")
]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of the search.")]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="URL",
        help="Let workers of this PostgreSQL run the trials; settings: that of the settings.",
    ),
]
StudyOption = Annotated[
    str | None,
    typer.Option("--study", metavar="NAME", help="Name of the study; default: by what it does."),
]


class SearchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the search, as they were given."""

    params: tuple[str, ...]
    trials: int | None
    method: str
    metric: str
    folds: int
    share: float
    seed: int
    study: str | None
    processes: int | None
    cluster: str | None = None

    def words(self, study: str) -> str:
        """Return the options that repeat the search."""
        given: list[tuple[str, object]] = [("--param", each) for each in self.params]
        given += [
            ("--trials", self.trials),
            ("--method", self.method),
            ("--metric", self.metric),
            ("--walk-forward", self.folds),
            ("--out-of-sample", self.share),
            ("--seed", self.seed),
            ("--study", study),
        ]
        return shlex.join(
            word for name, value in given if value is not None for word in (name, str(value))
        )


def optimise(
    strategy: StrategyArgument,
    data: DataArgument = None,
    param: ParamOption = None,
    trials: TrialsOption = None,
    method: MethodOption = "random",
    metric: MetricOption = "sharpe",
    walk_forward: WalkForwardOption = 1,
    out_of_sample: ShareOption = 0.25,
    processes: ProcessesOption = None,
    seed: SeedOption = 0,
    study: StudyOption = None,
    cluster: ClusterOption = None,
    bars: BarsOption = None,
    symbols: SymbolsOption = None,
    start: FromOption = None,
    end: ToOption = None,
    cash: CashOption = None,
    mapping: MapOption = None,
    columns: ColumnsOption = None,
    symbol: FileSymbolOption = None,
    timeframe: TimeframeOption = None,
    tz: ZoneOption = None,
    stops: StopsOption = True,
    call_limit: CallLimitOption = 10.0,
    instruments: InstrumentsOption = None,
    venue: VenueOption = "auto",
    json_file: JsonFileOption = None,
    html: HtmlOption = None,
    config: ConfigOption = None,
) -> int:
    """Search the parameters of a strategy over bars.

    Chooses parameters on the first part of each fold and judges them on the rest. Ctrl-C leaves a
    study that the same command continues. With --cluster, processes of `qts optimise worker` on any
    machine run the trials. Exit code 0: done, 1: no trial has a value, 2: refused.

    Example: qts optimise mine.py:Mine --bars 1d --param fast=2..20 --trials 200 --walk-forward 4
    """
    from qts.config import resolve
    from qts.optimise import start_fork_server

    output, page = JsonFile(json_file), html_file(html)
    if cluster is None:
        start_fork_server()
    options = BacktestOptions(
        strategies=(strategy,),
        data=data,
        bars=bars,
        symbols=symbols,
        start=start,
        end=end,
        file=FileOptions(mapping, columns, symbol, timeframe, tz),
        cash=cash,
        stops=stops,
        call_limit=call_limit,
        instruments=instruments,
        venue=venue,
        config=resolve(config, os.environ).file,
    )
    search = SearchOptions(
        params=tuple(param or ()),
        trials=trials,
        method=method,
        metric=metric,
        folds=walk_forward,
        share=out_of_sample,
        seed=seed,
        study=study,
        processes=processes,
        cluster=cluster,
    )
    _search(options, search, output, page)
    return 0


optimise.command_class = SearchCommand  # type: ignore[attr-defined]


def _search(
    options: BacktestOptions,
    search: SearchOptions,
    output: JsonFile,
    page: Path | None,
) -> None:
    from qts import telemetry
    from qts.machine import detect_topology
    from qts.optimise import (
        ClusterPool,
        StudyFile,
        WorkerPool,
        run_study,
        study_identity,
        study_name,
    )
    from qts.strategies import load_strategy

    plan, context, chosen = _prepare(options, search)
    identity = study_identity(plan, load_strategy(context.strategy.source), context)
    name = search.study or study_name(identity)
    processes = search.processes or detect_topology().usable
    if search.cluster is not None:
        if search.processes is not None:
            raise RefusedError("--processes is for this machine; the workers of --cluster have one")
        open_database = cluster_database(search.cluster, options.config)
        pool: AbstractContextManager[Any] = ClusterPool(open_database, name, identity, context)
        where = "run by workers: qts optimise worker"
    else:
        pool, where = WorkerPool(context, processes), f"{processes} processes"
    telemetry.configure(telemetry.TelemetryConfig(log_level="error"))
    with (
        StudyFile(options.home / "studies", name, identity) as file,
        pool as workers,
    ):
        for line in _plan_lines(plan, context, file, where):
            typer.echo(line, err=output.prints)
        try:
            with _progress(plan.runs) as progress:
                result = run_study(plan, file, workers, progress)
        except KeyboardInterrupt:
            line = f"{len(file.trials):,} of {plan.runs:,} runs are stored"
            typer.echo(f"{line}; the same command continues", err=True)
            raise
    info = _info(options, search, (chosen, context), name, result)
    _report(result, info, output, page)


def _prepare(
    options: BacktestOptions, search: SearchOptions
) -> tuple[StudyPlan, TrialContext, DataSelection]:
    """Return plan and data of the study; raise RefusedError for anything that cannot work."""
    from qts.backtest import BarTape, load_instruments
    from qts.optimise import (
        METRICS,
        SearchSpace,
        StudyPlan,
        TrialContext,
        make_folds,
        trial_count,
    )
    from qts.strategies import load_strategy

    check_name("--method", search.method, METHODS)
    check_name("--metric", search.metric, METRICS)
    method = cast(Any, search.method)
    instances = options.instances()
    if len(instances) != 1:
        names = ", ".join(each.name for each in instances)
        raise RefusedError(f"{options.strategies[0]} is {names}; expected one strategy to search")
    space = SearchSpace.parse(load_strategy(instances[0].source), search.params)
    trials = trial_count(method, space, search.trials)
    settings = replace(options.settings(), instances=instances)
    tape, _, chosen = options.read_tape(options.select_data())
    if not isinstance(tape, BarTape):
        raise RefusedError("the data has ticks; expected bars: --bars 1m, or a file of bars")
    if not len(tape.rows):
        raise RefusedError("the data has no bars in this time")
    plan = StudyPlan(
        space=space,
        method=method,
        metric=cast(Any, search.metric),
        trials=trials,
        seed=search.seed,
        folds=make_folds(tape.rows["at"], search.folds, search.share),
    )
    known = load_instruments(options.instruments, options.data, options.venue)
    return plan, TrialContext(instances[0], tape, settings, known, search.seed), chosen


def _plan_lines(
    plan: StudyPlan, context: TrialContext, file: StudyFile, where: str
) -> Iterator[str]:
    from datetime import UTC, datetime

    tape = context.tape
    folds = f" in each of {len(plan.folds)} folds" if len(plan.folds) > 1 else ""
    stored = f"; {len(file.trials):,} runs are stored" if file.trials else ""
    yield f"study {file.name}: {plan.trials:,} trials{folds}, {where}{stored}"
    yield f"{plan.method}, highest {plan.metric}: {' '.join(map(str, plan.space.ranges))}"
    yield f"{tape.events:,} bars of {tape.timeframe} of {len(tape.symbols):,} symbols"
    for fold in plan.folds:
        start, split, end = (
            f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"
            for at in (fold.start, fold.split, fold.end)
        )
        yield f"fold {fold.number + 1}: {start}, in sample to {split}, out of sample to {end} UTC"


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _done: None
        return
    columns = ("trials", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("trials", total=total)
        yield lambda done: bar.update(task, completed=done)


def _info(
    options: BacktestOptions,
    search: SearchOptions,
    data: tuple[DataSelection, TrialContext],
    study: str,
    result: StudyResult,
) -> StudyInfo:
    from qts.optimise import StudyInfo

    chosen, context = data
    fold, params = result.best.fold, result.best.best.params
    best = replace(options, params=tuple(f"{name}={value}" for name, value in params.items()))
    tape = context.tape
    return StudyInfo(
        study=study,
        strategy=context.strategy.name,
        data=f"{tape.events:,} bars of {tape.timeframe} of {len(tape.symbols):,} symbols",
        data_digest=tape.digest,
        command=f"{options.command(chosen, os.environ, 'optimise')} {search.words(study)}",
        best_command=best.command(replace(chosen, start=fold.start, end=fold.split), os.environ),
        check_command=best.command(replace(chosen, start=fold.start, end=fold.end), os.environ),
    )


def _report(result: StudyResult, info: StudyInfo, output: JsonFile, page: Path | None) -> None:
    from qts.optimise import render_study_html, render_study_table, study_json, study_warnings

    print_tables(render_study_table(result, info), on_stderr=output.prints)
    for warning in study_warnings(result):
        typer.echo(f"warning: {warning}", err=True)
    output.write(study_json(result, info))
    if page is not None:
        page.write_text(render_study_html(result, info), encoding="utf-8")
