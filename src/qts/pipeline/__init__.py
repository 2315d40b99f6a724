"""Strategies and the five steps around them: extract, transform, evaluate, decide, act."""

from qts.pipeline.act import Outcomes, Trader, act
from qts.pipeline.apart import Apart
from qts.pipeline.backtest import BacktestResult, backtest
from qts.pipeline.backtest_config import BacktestConfig
from qts.pipeline.compiled import StepStrategy
from qts.pipeline.config import PipelineConfig
from qts.pipeline.cycle import Cycle, Decision, Evaluation, Execution, StepFailed
from qts.pipeline.decide import Leave, decide
from qts.pipeline.evaluate import evaluate
from qts.pipeline.exposure import exposure_of
from qts.pipeline.extract import extract
from qts.pipeline.jobs import (
    BacktestCompleted,
    BacktestFailed,
    BacktestJobs,
    BacktestRequested,
    JobRow,
    list_jobs,
    show_job,
    submit_job,
)
from qts.pipeline.journal import Header, Journal
from qts.pipeline.load import load_strategy, shipped
from qts.pipeline.market import World, tick_of
from qts.pipeline.performance import Performance, Point, performance
from qts.pipeline.recorded import RecordedWorld
from qts.pipeline.report import page_of, table, to_json
from qts.pipeline.retrace import Retraced, retrace
from qts.pipeline.runner import Joints, Runner
from qts.pipeline.scheduler import Pipeline, Suspension
from qts.pipeline.strategy import Kind, NoParams, Position, Signal, Strategy, Tick, View
from qts.pipeline.tape import Chunk, Tape
from qts.pipeline.trades import Trade
from qts.pipeline.transform import transform

__all__ = [
    "Apart",
    "BacktestCompleted",
    "BacktestConfig",
    "BacktestFailed",
    "BacktestJobs",
    "BacktestRequested",
    "BacktestResult",
    "Chunk",
    "Cycle",
    "Decision",
    "Evaluation",
    "Execution",
    "Header",
    "JobRow",
    "Joints",
    "Journal",
    "Kind",
    "Leave",
    "NoParams",
    "Outcomes",
    "Performance",
    "Pipeline",
    "PipelineConfig",
    "Point",
    "Position",
    "RecordedWorld",
    "Retraced",
    "Runner",
    "Signal",
    "StepFailed",
    "StepStrategy",
    "Strategy",
    "Suspension",
    "Tape",
    "Tick",
    "Trade",
    "Trader",
    "View",
    "World",
    "act",
    "backtest",
    "decide",
    "evaluate",
    "exposure_of",
    "extract",
    "list_jobs",
    "load_strategy",
    "page_of",
    "performance",
    "retrace",
    "shipped",
    "show_job",
    "submit_job",
    "table",
    "tick_of",
    "to_json",
    "transform",
]
