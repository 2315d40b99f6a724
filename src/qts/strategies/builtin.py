"""Built-in strategies, and the loading of these and of others by name."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from qts.domain import MANUAL, STOPS, RefusedError, name_choices, nearest_name
from qts.strategies.step import StepStrategy
from qts.strategies.strategy import Strategy


class MovingAverageParams(msgspec.Struct, frozen=True, kw_only=True):
    fast: Annotated[int, Meta(ge=1, le=1000, description="length of the fast average")] = 20
    slow: Annotated[int, Meta(ge=2, le=5000, description="length of the slow average")] = 100
    margin: Annotated[
        float, Meta(ge=0, le=0.1, description="fraction by which they must cross")
    ] = 0.0005


class MovingAverageSwing(StepStrategy[MovingAverageParams], key="moving_average_swing"):
    """Trend-following strategy on two moving averages.

    It enters when the fast average crosses above the slow one and exits when it crosses back.
    Both averages are exponential: a tick has the weight 2 / (length + 1).
    """

    kind = "SWING"
    state_size = 4  # tick count, fast average, slow average, last side

    @staticmethod
    def step(
        state: Any, params: Any, price: float, _volume: float, _at: float, position: float
    ) -> int:
        fast, slow, margin = params[0], params[1], params[2]
        if state[0] == 0:
            state[1] = price
            state[2] = price
        else:
            state[1] += (price - state[1]) * 2.0 / (fast + 1.0)
            state[2] += (price - state[2]) * 2.0 / (slow + 1.0)
        state[0] += 1
        if state[0] < slow:
            return 0
        side = state[3]
        if state[1] > state[2] * (1.0 + margin):
            state[3] = 1
        elif state[1] < state[2] * (1.0 - margin):
            state[3] = -1
        if position > 0:
            return -1 if state[3] < 0 else 0
        return 1 if side < 0 and state[3] > 0 else 0


class RsiParams(msgspec.Struct, frozen=True, kw_only=True):
    length: Annotated[int, Meta(ge=2, le=500, description="ticks in the averages")] = 14
    low: Annotated[float, Meta(gt=0, lt=50, description="oversold below this RSI")] = 30.0
    high: Annotated[float, Meta(gt=50, lt=100, description="overbought above this RSI")] = 70.0


class RsiScalper(StepStrategy[RsiParams], key="rsi_scalper"):
    """Mean-reversion strategy on the relative strength index (RSI).

    The RSI compares the average rise of the last ticks with the average fall: 0 if the price only
    fell, 100 if it only rose. Below `low` a symbol is oversold; the strategy enters when the RSI
    climbs back above `low` and exits when it reaches `high`.
    """

    kind = "SCALP"
    state_size = 5  # tick count, last price, average rise, average fall, last RSI

    @staticmethod
    def step(
        state: Any, params: Any, price: float, _volume: float, _at: float, position: float
    ) -> int:
        length, low, high = params[0], params[1], params[2]
        count = state[0]
        if count > 0:
            change = price - state[1]
            rise = change if change > 0 else 0.0
            fall = -change if change < 0 else 0.0
            weight = 1.0 / min(count, length)  # a plain average for the first `length` ticks
            state[2] += (rise - state[2]) * weight
            state[3] += (fall - state[3]) * weight
        state[0] = count + 1
        state[1] = price
        if count < length:
            return 0
        total = state[2] + state[3]
        rsi = 100.0 * state[2] / total if total > 0 else 50.0
        last_rsi = state[4]
        state[4] = rsi
        if position > 0:
            return -1 if rsi >= high else 0
        return 1 if 0 < last_rsi < low <= rsi else 0


_RING = 4  # index of the first recent price in a state
MAX_WINDOW = 60


class BreakoutParams(msgspec.Struct, frozen=True, kw_only=True):
    window: Annotated[int, Meta(ge=2, le=MAX_WINDOW, description="prices in the range")] = 20
    margin: Annotated[
        float, Meta(ge=0, le=0.5, description="fraction above the high that is a breakout")
    ] = 0.003
    volume_ratio: Annotated[
        float, Meta(ge=0, le=100, description="minimum volume, as a multiple of its average")
    ] = 1.5
    give_back: Annotated[
        float, Meta(gt=0, lt=1, description="fraction below the best price that triggers the exit")
    ] = 0.01


class SurgeBreakout(StepStrategy[BreakoutParams], key="surge_breakout"):
    """Breakout strategy on price and volume.

    It enters above the recent high on volume and exits when the price gives back too much. The
    recent high is the highest of the last `window` prices. A breakout without volume is often a
    false one, so the tick's volume must be at least `volume_ratio` times the recent average.
    """

    kind = "SCALP"
    state_size = _RING + MAX_WINDOW  # tick count, average volume, best price, unused, recent prices

    @staticmethod
    def step(
        state: Any, params: Any, price: float, volume: float, _at: float, position: float
    ) -> int:
        window, margin, ratio, give_back = params[0], params[1], params[2], params[3]
        count, size = int(state[0]), int(window)
        highest = 0.0
        for i in range(size):
            if state[4 + i] > highest:
                highest = state[4 + i]
        average = state[1]
        state[1] += (volume - average) / (size if count >= size else count + 1.0)
        state[4 + count % size] = price
        state[0] = count + 1
        if position > 0:
            if price > state[2]:
                state[2] = price
            return -1 if price <= state[2] * (1.0 - give_back) else 0
        state[2] = price
        if count < size:
            return 0
        return 1 if price > highest * (1.0 + margin) and volume >= ratio * average else 0


def builtin_strategies() -> dict[str, type[Strategy[Any]]]:
    """Return the built-in strategies by key."""
    kinds: tuple[type[Strategy[Any]], ...] = (MovingAverageSwing, RsiScalper, SurgeBreakout)
    return {kind.key: kind for kind in kinds}


def load_strategy(name: str) -> type[Strategy[Any]]:
    """Return the class that `rsi_scalper`, `package.mine:Mine` or `folder/mine.py:Mine` names."""
    source, colon, class_name = name.rpartition(":")
    if not colon and name.endswith(".py"):
        source, class_name = name, ""
    elif not colon:
        builtin = builtin_strategies()
        if name not in builtin:
            near = nearest_name(name, builtin)
            hint = f"; did you mean {near}?" if near else ""
            raise RefusedError(
                f"unknown strategy {name!r}; expected module:Class, path.py:Class or one of"
                f" {', '.join(sorted(builtin))}{hint}"
            )
        return builtin[name]
    module = _load_module(name, source)
    found = getattr(module, class_name, None)
    if found is None:
        classes = _strategies_of(module)
        if not colon:
            expected = ", ".join(f"{source}:{each}" for each in classes) or "path.py:Class"
            raise RefusedError(f"strategy {name} names no class; expected {expected}")
        expected = f"; expected {name_choices(class_name, classes)}" if classes else ""
        raise RefusedError(f"strategy {name}: {source} has no class {class_name!r}{expected}")
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise RefusedError(f"strategy {name}: {class_name} must derive from qts.Strategy")
    if found.key in (MANUAL, STOPS):
        whose = "the operator" if found.key == MANUAL else "the stops"
        raise RefusedError(
            f"strategy {name}: its key is {found.key!r}, which orders of {whose} have; give it"
            f' another: class {class_name}(Strategy, key="...")'
        )
    return found


def _strategies_of(module: ModuleType) -> list[str]:
    """Return the names of the strategies that a module defines."""
    return [
        name
        for name, each in vars(module).items()
        if isinstance(each, type)
        and issubclass(each, Strategy)
        and each.__module__ == module.__name__
    ]


def source_digest(kind: type[Strategy[Any]]) -> str:
    """Return a digest of the file that defines a strategy; empty where it has none."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else ""
    except OSError:
        return ""


def _load_module(name: str, source: str) -> ModuleType:
    try:
        is_file = source.endswith(".py")
        return _load_file(Path(source)) if is_file else importlib.import_module(source)
    except Exception as error:
        raise RefusedError(
            f"strategy {name} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    file = path.resolve()
    name = f"qts_strategy_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # msgspec resolves annotations through it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
