"""`qts config check` and `qts run` refuse strategies and parameters that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from qts.cli.main import run_command
from qts.config import Config, load
from qts.domain import RefusedError
from qts.pipeline import PipelineConfig, select_instances

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
    Config().strategy_instances()


def test_an_empty_list_takes_parameters_of_built_in_strategies_only() -> None:
    with pytest.raises(RefusedError, match="did you mean rsi_scalper"):
        Config(pipeline=PipelineConfig(params=("rsi_scalpr.length=9",))).strategy_instances()


LISTS = """
import msgspec
from qts import Strategy

class Params(msgspec.Struct, frozen=True):
    k: float = 0.5
    windows: tuple[int, ...] = (5, 20)

class Breakout(Strategy[Params]):
    symbols = ("005930",)
"""
TWO = """
[[strategy]]
class = "breakout.py:Breakout"

[[strategy]]
class = "breakout.py:Breakout"
name = "breakout-btc"
symbols = ["KRW-BTC"]
parameters = { k = 0.7, windows = [3, 9] }
"""


@pytest.fixture
def tables(directory: Path) -> Path:
    (directory / "breakout.py").write_text(LISTS)
    return directory / "qts.toml"


def test_one_class_runs_as_two_instances(tables: Path) -> None:
    tables.write_text(TWO)
    first, second = (each.create() for each in load(tables, {}).strategy_instances())
    assert (first.key, first.symbols, first.params.windows) == ("breakout", ("005930",), (5, 20))
    assert (second.key, second.symbols) == ("breakout-btc", ("KRW-BTC",))
    assert (second.params.k, second.params.windows) == (0.7, (3, 9))
    assert (type(first), type(first).key) == (type(second), "breakout")
    assert load(tables, {}).strategy_names() == ["breakout", "breakout-btc"]
    assert run_command(["config", "check", "--config", str(tables)]) == 0


def test_the_list_of_the_pipeline_is_the_short_form_of_tables(tables: Path) -> None:
    tables.write_text(
        '[pipeline]\nstrategies = ["breakout.py:Breakout"]\n'
        'params = ["breakout.windows=3,9", "breakout-btc.k=0.9"]\n' + TWO.partition("\n\n")[2]
    )
    first, second = (each.create() for each in load(tables, {}).strategy_instances())
    assert (first.key, first.params.windows) == ("breakout", (3, 9))
    assert (second.key, second.params.k) == ("breakout-btc", 0.9)


BAD_TABLES = {
    'class = "breakout.py:Breakout"\nnmae = "a"': ["strategy.nmae", "did you mean name?"],
    'name = "a"': ["strategy.class is missing", "module:Class"],
    'class = "breakout.py:Breakot"': ["strategy:", "no class 'Breakot'"],
    'class = "breakout.py:Breakout"': ["strategy:", "'breakout'", "each name once"],
    'class = "rsi_scalpr"': ["'rsi_scalpr'", "did you mean rsi_scalper?"],
    'class = "rsi_scalper"\nname = "a.b"': ["'a.b'", "letters, digits"],
    'class = "rsi_scalper"\nname = "manual"': ["'manual'", "orders of the operator"],
    'class = "rsi_scalper"\nname = "risk"': ["'risk'", "orders of the stops"],
    'class = "rsi_scalper"\nname = "all"': ["'all'", "every instance"],
    'class = "rsi_scalper"\nname = 3': ["strategy.name = 3", "a text"],
    'class = "rsi_scalper"\nsymbols = "005930"': ['strategy.symbols = "005930"', "a list"],
    'class = "rsi_scalper"\nsymbols = []': ["symbols of rsi_scalper is empty"],
    'class = "rsi_scalper"\nsymbols = ["A", "A"]': ["'A' twice"],
    'class = "rsi_scalper"\nparameters = { lenght = 9 }': ["'lenght'", "did you mean length?"],
    'class = "rsi_scalper"\nparameters = { length = "x" }': ["rsi_scalper.length=x", "`int`"],
    'class = "rsi_scalper"\ncapital = 0': ["strategy.capital = 0", "an integer from 1"],
    'class = "rsi_scalper"\nlimits = { order_per_day = 5 }': [
        "strategy.limits.order_per_day",
        "did you mean orders_per_day?",
    ],
    'class = "rsi_scalper"\nlimits = { orders_per_day = "many" }': [
        'strategy.limits.orders_per_day = "many"',
        "an integer from 1",
    ],
    'class = "rsi_scalper"\nstops = { mae_ful = 0.5 }': ["stops.mae_ful", "mean mae_full?"],
    'class = "rsi_scalper"\nstops = { mae_full = 0.001 }': [
        "strategy rsi_scalper: stops: mae_half (0.015)",
        "mae_full (0.001)",
    ],
    'class = "rsi_scalper"\nlimits = { max_symbol_exposure = 0.5 }': [
        "strategy: limits.max_symbol_exposure (0.5)",
        "expected capital",
    ],
    'class = "breakout.py:Breakout"\nname = "b"\nparameters = { windows = [1, "x"] }': [
        "strategy b: parameters: b.windows=[1, 'x']",
        "`int`",
    ],
}


@pytest.mark.parametrize(("table", "words"), BAD_TABLES.items())
def test_a_wrong_instance_is_one_line(
    table: str, words: list[str], tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables.write_text(f'[[strategy]]\nclass = "breakout.py:Breakout"\n\n[[strategy]]\n{table}\n')
    assert run_command(["config", "check", "--config", str(tables)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert [word for word in words if word not in line] == []


def test_an_error_of_a_table_names_its_line(tables: Path) -> None:
    tables.write_text(TWO + "capitl = 5\n")
    with pytest.raises(RefusedError, match=r"qts\.toml:5: unknown key strategy\.capitl"):
        load(tables, {})


def test_instances_come_from_the_environment_too(tables: Path) -> None:
    text = '[{ class = "rsi_scalper", name = "one" }, { class = "rsi_scalper", name = "two" }]'
    assert load(None, {"QTS_STRATEGY": text}).strategy_names() == ["one", "two"]
    for bad in ("rsi_scalper", "[1]", "[{ class = 1 }]", ""):
        with pytest.raises(RefusedError, match="QTS_STRATEGY: "):
            load(None, {"QTS_STRATEGY": bad})


def test_a_backtest_takes_an_instance_by_its_name_or_all(tables: Path) -> None:
    tables.write_text(TWO)
    settings = load(tables, {})

    def names(*chosen: str) -> list[str]:
        found = select_instances(chosen, settings.pipeline, settings.strategy)
        return [each.name for each in found]

    assert names("all") == ["breakout", "breakout-btc"]
    assert names("breakout-btc", "rsi_scalper") == ["breakout-btc", "rsi_scalper"]
    assert names("breakout.py:Breakout") == ["breakout"]
    with pytest.raises(RefusedError, match="did you mean breakout-btc"):
        names("breakout-bct")
    with pytest.raises(RefusedError, match="the settings have no strategy"):
        select_instances(("all",), PipelineConfig(), ())


@pytest.mark.parametrize(
    ("symbols", "refused"),
    [
        ('symbols = ["005930", "KRW-BTC"]', True),
        ("", True),
        ('symbols = ["005930", "000660"]', False),
    ],
)
def test_capital_at_two_venues_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], symbols: str, refused: bool
) -> None:
    file = tmp_path / "qts.toml"
    file.write_text(
        'feed = { venue = ["kis", "upbit"] }\n'
        '[[strategy]]\nclass = "rsi_scalper"\nname = "two"\ncapital = 1_000_000\n' + symbols
    )
    assert run_command(["config", "check", str(file)]) == (2 if refused else 0)
    error = capsys.readouterr().err
    expected = "strategy two: it trades at kis and upbit, and its capital and limits hold at one"
    assert (expected in error) is refused


KEY = 'app_key = "PSabc"\napp_secret = "s"\n'
LIVE = 'mode = "live"\nlive_acknowledgement = "I_UNDERSTAND_LIVE_TRADING"'
LIVE_SETTINGS = [
    ('[brokers]\nbroker = "kis"\n' + LIVE, ["brokers.mode", "venues.kis has no key", "setup kis"]),
    (
        '[feed]\nvenue = "upbit"\n[brokers]\nbroker = "upbit"\n' + LIVE,
        ["brokers.mode", "venues.upbit has no key"],
    ),
    (
        f'[brokers]\nbroker = "kis"\n{LIVE}\n[venues.kis]\napp_key = "PSabc"',
        ["missing: venues.kis.app_key, app_secret and account"],
    ),
    (
        f'[brokers]\nbroker = "kis"\nmode = "live"\n[venues.kis]\n{KEY}account = "1234567801"',
        ["missing: brokers.live_acknowledgement"],
    ),
    (
        '[brokers]\nbroker = "kis"\n[venues.kis]\n' + KEY + 'account = "1234567801"',
        ["missing: brokers.mode"],
    ),
    (
        f'[simulator]\nenabled = false\n[brokers]\nbroker = "kis"\n{LIVE}',
        ["missing: venues.kis.app_key, app_secret and account"],
    ),
    ('[brokers]\nbroker = "upbit"', ["brokers.broker", "feed.venue"]),
]


@pytest.mark.parametrize(("text", "words"), LIVE_SETTINGS)
def test_live_settings_that_a_run_refuses_are_one_line(
    directory: Path, text: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = directory / "qts.toml"
    file.touch(mode=0o600)
    file.write_text(text)
    for command in (["config", "check", str(file)], ["run", "--duration", "1s", "-c", str(file)]):
        assert run_command(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert [word for word in words if word not in line] == []
    assert not (directory / "home/postgres").exists()


@pytest.mark.parametrize("account", ["my account", "50123456-01", "501234560", "50123456011"])
def test_an_account_of_another_shape_is_refused_and_not_shown(
    directory: Path, account: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = directory / "qts.toml"
    file.touch(mode=0o600)
    file.write_text(f'[venues.kis]\n{KEY}account = "{account}"')
    assert run_command(["config", "check", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "qts.toml:4: venues.kis.account is not ten digits; expected" in line
    assert account not in line


def test_a_live_key_with_consent_is_accepted(directory: Path) -> None:
    file = directory / "qts.toml"
    file.touch(mode=0o600)
    file.write_text(f'[brokers]\nbroker = "kis"\n{LIVE}\n[venues.kis]\n{KEY}account = "1234567801"')
    assert run_command(["config", "check", str(file)]) == 0
