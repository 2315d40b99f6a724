"""`qts config check` and `qts run` refuse strategies and parameters that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from qts.cli.main import run_command
from qts.config import Config
from qts.domain import RefusedError
from qts.pipeline import PipelineConfig

MINE = """
import msgspec
from qts import Strategy

class Params(msgspec.Struct, frozen=True):
    drop: float = 0.02
    days: int = 3

    def __post_init__(self):
        if self.days < 1:
            raise ValueError("days must be 1 or more")

class Dip(Strategy[Params]):
    pass
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QTS_HOME", str(tmp_path / "home"))
    return tmp_path


def settings(strategies: list[str], params: list[str], isolated: list[str]) -> Path:
    file = Path("qts.toml")
    file.write_text(
        f"[pipeline]\nstrategies = {strategies}\nparams = {params}\n"
        f"isolated_strategies = {isolated}\n"
    )
    return file


ACCEPTED: list[tuple[list[str], list[str], list[str]]] = [
    ([], [], []),
    ([], ["rsi_scalper.length=20"], []),
    (["rsi_scalper"], ["rsi_scalper.length=20"], ["*"]),
    (["mine.py:Dip", "rsi_scalper"], ["dip.drop=0.1", "dip.days=5"], ["dip"]),
]
REFUSED: list[tuple[list[str], list[str], list[str], list[str]]] = [
    (["rsi_scalpr"], [], [], ["'rsi_scalpr'", "surge_breakout", "did you mean rsi_scalper?"]),
    (["nowhere:Dip"], [], [], ["nowhere:Dip", "No module named 'nowhere'"]),
    (["mine.py:Dop"], [], [], ["mine.py:Dop", "Dop"]),
    (["rsi_scalper"], ["rsi_scalper.lenght=9"], [], ["'lenght'", "low", "did you mean length?"]),
    (["rsi_scalper"], ["rsi_scalper.length=long"], [], ["rsi_scalper.length=long", "`int`"]),
    (["rsi_scalper"], ["length=9"], [], ["'length=9'", "rsi_scalper.length=20"]),
    (["mine.py:Dip"], ["Dip.drop=0.1"], [], ["'Dip.drop=0.1'", "did you mean dip?"]),
    (["mine.py:Dip"], ["rsi_scalper.length=9"], [], ["'rsi_scalper'", "pipeline.strategies: dip"]),
    (["mine.py:Dip"], ["dip.days=0"], [], ["dip", "days must be 1 or more"]),
    (["rsi_scalper", "qts.strategies:RsiScalper"], [], [], ["'rsi_scalper'", "once"]),
    (["mine.py:Dip"], [], ["dap"], ["'dap'", "pipeline.isolated_strategies", "dip"]),
]


@pytest.mark.parametrize(("strategies", "params", "isolated"), ACCEPTED)
@pytest.mark.parametrize("option", ["--config", "-c", ""])
def test_what_fits_is_accepted(
    strategies: list[str], params: list[str], isolated: list[str], option: str
) -> None:
    file = str(settings(strategies, params, isolated))
    assert run_command(["config", "check", *([option] if option else []), file]) == 0


@pytest.mark.parametrize(("strategies", "params", "isolated", "words"), REFUSED)
def test_what_does_not_fit_is_one_line(
    strategies: list[str],
    params: list[str],
    isolated: list[str],
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = settings(strategies, params, isolated)
    assert run_command(["config", "check", "--config", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert [word for word in words if word not in line] == []
    assert "pipeline." in line


@pytest.mark.parametrize(("strategies", "params", "isolated", "words"), REFUSED)
def test_a_run_refuses_it_before_servers_start(
    strategies: list[str],
    params: list[str],
    isolated: list[str],
    words: list[str],
    directory: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings(strategies, params, isolated)
    assert run_command(["run", "--duration", "1s"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert [word for word in words if word not in line] == []
    assert not (directory / "home/postgres").exists()


def test_two_files_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["config", "check", "one.toml", "--config", "two.toml"]) == 2
    assert "one.toml" in capsys.readouterr().err


def test_the_defaults_are_accepted() -> None:
    Config().pipeline.check_strategies()


def test_an_empty_list_takes_parameters_of_built_in_strategies_only() -> None:
    with pytest.raises(RefusedError, match="did you mean rsi_scalper"):
        PipelineConfig(params=("rsi_scalpr.length=9",)).check_strategies()
