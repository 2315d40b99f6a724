from qts.strategies.moving_average_swing import MovingAverageSwing as MovingAverageSwing
from qts.strategies.rsi_scalper import RsiScalper as RsiScalper
from qts.strategies.surge_breakout import SurgeBreakout as SurgeBreakout
