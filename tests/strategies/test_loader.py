"""Loading strategies: built-in ones, those of a module, those of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from qts.domain import RefusedError
from qts.strategies import RsiScalper, builtin_strategies, load_strategy

FILE = """
from __future__ import annotations
import msgspec
from qts import Strategy

class Params(msgspec.Struct, frozen=True):
    length: int = 3

class Mine(Strategy[Params]):
    pass
"""


def test_built_in_strategies_load_by_key() -> None:
    assert load_strategy("rsi_scalper") is RsiScalper
    assert set(builtin_strategies()) == {"rsi_scalper", "moving_average_swing", "surge_breakout"}
    assert all(load_strategy(key) is kind for key, kind in builtin_strategies().items())


def test_a_module_and_its_class() -> None:
    assert load_strategy("qts.strategies:RsiScalper") is RsiScalper
    assert load_strategy("qts.strategies.builtin:RsiScalper") is RsiScalper


def test_a_file_and_its_class(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    kind = load_strategy(f"{path}:Mine")
    assert (kind.key, kind.from_params({"length": "7"}).params.length) == ("mine", 7)
    assert load_strategy(f"{path}:Mine") is kind


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "expected module:Class, path.py:Class or one of moving_average_swing, rsi_scalper"),
        (":X", "cannot be loaded"),
        ("qts.strategies:", "has no class ''$"),
        ("none.py:X", "none.py does not exist"),
        ("raises.py:X", "cannot be loaded: ZeroDivisionError"),
        ("mine.py", "names no class; expected mine.py:Mine$"),
        ("mine.py:Mien", "has no class 'Mien'; expected Mine; did you mean Mine\\?$"),
    ],
)
def test_what_cannot_be_loaded_is_refused(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raises.py").write_text("1 / 0\n")
    (tmp_path / "mine.py").write_text(FILE)
    with pytest.raises(RefusedError, match=message):
        load_strategy(name)
