"""Strategies and the five steps around them: extract, transform, evaluate, decide, act."""

from qts.pipeline.act import Outcomes, Trader, act
from qts.pipeline.compiled import StepStrategy
from qts.pipeline.cycle import Cycle, Decision, Evaluation, Execution, StepFailed
from qts.pipeline.decide import Leave, decide
from qts.pipeline.evaluate import evaluate
from qts.pipeline.extract import extract
from qts.pipeline.market import World, tick_of
from qts.pipeline.runner import Runner
from qts.pipeline.scheduler import Pipeline, PipelineConfig, Suspension
from qts.pipeline.strategy import NoParams, Position, Signal, Strategy, Tick, View
from qts.pipeline.transform import transform

__all__ = [
    "Cycle",
    "Decision",
    "Evaluation",
    "Execution",
    "Leave",
    "NoParams",
    "Outcomes",
    "Pipeline",
    "PipelineConfig",
    "Position",
    "Runner",
    "Signal",
    "StepFailed",
    "StepStrategy",
    "Strategy",
    "Suspension",
    "Tick",
    "Trader",
    "View",
    "World",
    "act",
    "decide",
    "evaluate",
    "extract",
    "tick_of",
    "transform",
]
