"""The market as it comes in: plan, poll, notice what moves, observe, record, replay."""

from qts.feed.burst import BurstManager
from qts.feed.calendar import SEOUL, Calendar, Session
from qts.feed.config import FeedConfig
from qts.feed.export import export_parquet
from qts.feed.feed import Feed, FeedState, offline_plan
from qts.feed.intake import Intake
from qts.feed.observer import Observer
from qts.feed.planner import Demand, Plan, plan
from qts.feed.poller import Poller, PollerState
from qts.feed.quotes import best_quotes
from qts.feed.reader import read
from qts.feed.recorder import Recorder
from qts.feed.replay import replay
from qts.feed.snapshot import ObservationSnapshot, PatternRecord
from qts.feed.source import Source, UpbitSource
from qts.feed.surge import PriceCache, Surge, SurgeDetector
from qts.feed.symbols import read_symbols

__all__ = [
    "SEOUL",
    "BurstManager",
    "Calendar",
    "Demand",
    "Feed",
    "FeedConfig",
    "FeedState",
    "Intake",
    "ObservationSnapshot",
    "Observer",
    "PatternRecord",
    "Plan",
    "Poller",
    "PollerState",
    "PriceCache",
    "Recorder",
    "Session",
    "Source",
    "Surge",
    "SurgeDetector",
    "UpbitSource",
    "best_quotes",
    "export_parquet",
    "offline_plan",
    "plan",
    "read",
    "read_symbols",
    "replay",
]
