"""Strategies to begin with: each is short, and shows one way of deciding."""

from qts.strategies.moving_average_swing import MovingAverageSwing
from qts.strategies.rsi_scalper import RsiScalper
from qts.strategies.surge_breakout import SurgeBreakout

__all__ = ["MovingAverageSwing", "RsiScalper", "SurgeBreakout"]
