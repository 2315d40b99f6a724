from qts.backtest.config import BacktestConfig as BacktestConfig
from qts.backtest.result import BacktestResult as BacktestResult
from qts.backtest.run import run_backtest as run_backtest
from qts.backtest.tape import load_tape as load_tape
from qts.domain.instruments import Bar as Bar
from qts.domain.instruments import Tick as Tick
from qts.domain.instruments import Timeframe as Timeframe
from qts.domain.orders import Account as Account
from qts.domain.orders import Fill as Fill
from qts.domain.orders import IntentType as IntentType
from qts.domain.orders import OrderSnapshot as OrderSnapshot
from qts.domain.orders import OrderType as OrderType
from qts.domain.orders import Position as Position
from qts.domain.orders import Side as Side
from qts.domain.orders import TimeInForce as TimeInForce
from qts.strategies.builtin import load_strategy as load_strategy
from qts.strategies.signal import Cancel as Cancel
from qts.strategies.signal import Replace as Replace
from qts.strategies.signal import Signal as Signal
from qts.strategies.step import StepStrategy as StepStrategy
from qts.strategies.strategy import NoParams as NoParams
from qts.strategies.strategy import Strategy as Strategy
from qts.strategies.strategy import View as View

__version__: str
