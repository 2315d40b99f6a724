"""Overrides from the environment: precedence, conversion, refusals."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from qts.config import Setting, load, resolve, settings_of
from qts.config.decode import Origin, RawSetting, convert
from qts.config.load import overrides
from qts.config.render import toml
from qts.config.schema import RENAMED, SimulatorConfig, schema_of, variable_of
from qts.domain import ConfigError, Secret
from tests.config.conftest import Write
from tests.config.strategies import values_of


def test_stronger_sources_win(write: Write) -> None:
    path = write('[database]\nurl = "postgresql://file"\n[cache]\nurl = "redis://file"\n')
    layers = [
        ({}, "file"),
        ({"DATABASE_URL": "postgresql://common", "REDIS_URL": "redis://common"}, "common"),
        ({"QTS_DATABASE__URL": "postgresql://own", "QTS_CACHE__URL": "redis://own"}, "own"),
    ]
    environ: dict[str, str] = {}
    for added, winner in layers:
        environ |= added
        config = load(path, environ)
        assert config.database.url == Secret(f"postgresql://{winner}")
        assert config.cache.url == Secret(f"redis://{winner}")


# A TLS certificate and its key are set together or not at all.
PAIRS = {"dashboard.certificate", "dashboard.key"}
ALONE = [setting for setting in settings_of() if setting.name not in PAIRS]


@pytest.mark.parametrize("setting", ALONE, ids=lambda setting: setting.name)
@settings(max_examples=2)  # for each of two hundred settings
@given(data=st.data())
def test_any_setting_can_be_overridden(setting: Setting, data: st.DataObject) -> None:
    value = data.draw(values_of(setting))
    assume(value is not None)
    text = value.reveal() if isinstance(value, Secret) else str(value)
    if isinstance(value, tuple):
        text = toml(value) if setting.name == "strategy" else ", ".join(map(str, value))
    found = resolve(None, {setting.variable: text})
    assert setting.of(found.config) == value
    assert found.origins == {setting.name: Origin("environment", setting.variable)}


KEYS = {old: new for old, new in RENAMED.items() if old != "demo"} | {
    f"demo.{name}": f"simulator.{name}" for name in SimulatorConfig.__struct_fields__
}


@pytest.mark.parametrize(("old", "new"), KEYS.items())
def test_a_variable_of_a_renamed_key_is_refused_with_its_new_name(old: str, new: str) -> None:
    variable = variable_of(old)
    with pytest.raises(ConfigError) as refusal:
        load(None, {variable: "1"})
    assert str(refusal.value) == (
        f"{variable}: unknown setting in the environment; it was renamed to {variable_of(new)}"
    )
    assert refusal.value.exit_code == 2


def test_numbers_and_switches_are_read_from_text() -> None:
    environ = {
        "QTS_EVENTS__P0__QUEUE_SIZE": " 50 ",
        "QTS_EVENTS__P3__SAMPLE_RATE": "5e-1",
        "QTS_EMBEDDED__TCP": "true",
        "QTS_TELEMETRY__OTLP_ENDPOINT": "",
    }
    config = load(None, environ)
    assert config.events.p0.queue_size == 50
    assert config.events.p3.sample_rate == 0.5
    assert config.embedded.tcp is True
    assert config.telemetry.otlp_endpoint == ""


REFUSED = {
    ("QTS_EVENTS__P0__QUEUE_SIZE", "lots"): (
        'events.p0.queue_size = "lots": expected an integer from 1 to 1000000'
    ),
    ("QTS_EVENTS__P0__QUEUE_SIZE", "0"): (
        'events.p0.queue_size = "0": expected an integer from 1 to 1000000'
    ),
    ("QTS_EVENTS__P0__QUEUE_SIZE", ""): (
        "events.p0.queue_size is empty; expected an integer from 1 to 1000000"
    ),
    ("QTS_EVENTS__P0__OVERFLOW", "collapse"): (
        'events.p0.overflow must stay "block", not "collapse": a P0 event is never lost'
    ),
    ("QTS_EVENTS__P3__SAMPLE_RATE", "nan"): (
        'events.p3.sample_rate = "nan": expected a finite number above 0 and at most 1'
    ),
    ("QTS_BROKERS__SEND_TIMEOUT_S", "5"): (
        "brokers.send_timeout_s (5) must be below orders.place_timeout_s (5): an order that was"
        " never sent would count as unknown"
    ),
    ("QTS_EMBEDDED__TCP", "perhaps"): 'embedded.tcp = "perhaps": expected true or false',
    ("QTS_HOME", ""): "home is empty; expected a path",
    ("QTS_HOME", "~nobody-here/x"): (
        'home: "~nobody-here/x" names a user without a home directory'
    ),
    ("QTS_HOME", "/\udcff"): "home is not UTF-8 text",
    ("DATABASE_URL", " "): 'database.url is empty; expected a text or { file = "path" }',
    ("REDIS_URL", "localhost"): "cache.url must begin with redis:// or rediss:// or unix://",
    ("QTS_EVENTS_P0_QUEUE_SIZE", "5"): (
        "unknown setting in the environment; did you mean QTS_EVENTS__P0__QUEUE_SIZE?"
    ),
    ("QTS_DATABASE_URL", "x"): (
        "unknown setting in the environment; did you mean QTS_DATABASE__URL?"
    ),
    ("QTS_X", "x"): (
        "unknown setting in the environment; settings are written as in QTS_BROKERS__BROKER"
    ),
}


@pytest.mark.parametrize(("variable", "line"), REFUSED.items(), ids=lambda part: str(part)[:40])
def test_a_bad_variable_is_refused_in_one_line(variable: tuple[str, str], line: str) -> None:
    name, value = variable
    with pytest.raises(ConfigError) as refusal:
        load(None, {name: value})
    assert str(refusal.value) == f"{name}: {line}"


def test_names_that_are_no_settings_are_left_alone(write: Write) -> None:
    environ = {
        "QTS_TEST_DATABASE_URL": "x",
        "QTS_CONFIG": str(write("")),
        "PATH": "/bin",
        "QTSX": "1",
    }
    assert resolve(None, environ).origins == {}


def test_a_value_that_is_overridden_must_still_be_right(write: Write) -> None:
    path = write("[cache]\npool_max = 1\n")
    with pytest.raises(ConfigError, match=r"cache\.pool_max = 1: expected"):
        load(path, {"QTS_CACHE__POOL_MAX": "50"})


class _Watch(msgspec.Struct, frozen=True):
    symbols: tuple[str, ...] = ()
    ports: list[int] = []
    rate: float = 1.0


def _watch(environ: dict[str, str]) -> dict[str, object]:
    problems: list[str] = []
    given = overrides(schema_of(_Watch), environ, problems)
    assert problems == []
    return {
        setting.name: convert(RawSetting(setting, value, Origin("environment", name), Path.cwd()))
        for setting, value, name in given
    }


def test_commas_part_a_list() -> None:
    environ = {"QTS_SYMBOLS": "005930, KRW-BTC", "QTS_PORTS": "80,443"}
    assert _watch(environ) == {"ports": [80, 443], "symbols": ("005930", "KRW-BTC")}


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
def test_a_number_without_bounds_is_still_finite(value: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        _watch({"QTS_RATE": value})
    assert str(refusal.value) == f'QTS_RATE: rate = "{value}": expected a finite number'
