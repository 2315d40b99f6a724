"""The settings file: what is refused and in which words, where it is looked for, how it is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from qts.config import Config, load, render, resolve
from qts.config.render import toml
from qts.config.schema import RENAMED, schema_of
from qts.config.settings_file import dotted, read
from qts.domain import ConfigError, Secret
from tests.config.conftest import Write, ordinary_user
from tests.config.strategies import CONFIGS, TEXT

REFUSED = [
    ("cache.max_pool = 3", "{file}:1: unknown key cache.max_pool; did you mean cache.pool_max?"),
    ("evnts = 3", "{file}:1: unknown key evnts; did you mean events?"),
    (
        "\n[events.p0]\nqueue_sise = 5",
        "{file}:3: unknown key events.p0.queue_sise; did you mean events.p0.queue_size?",
    ),
    (
        "[telemetry]\nqueue_size = 5",
        "{file}:2: unknown key telemetry.queue_size; did you mean events.p0.queue_size?",
    ),
    (
        "[embedded]\nzzz = 5",
        "{file}:2: unknown key embedded.zzz; "
        "known here: tcp, postgres_port, valkey_port, valkey_memory_mb",
    ),
    (
        '[telemetry."a b\\n"]',
        '{file}:1: unknown key telemetry."a b\\n"; '
        "known here: log_level, log_format, log_file, log_file_mb, log_files, metrics_port, "
        "otlp_endpoint, trace_every",
    ),
    ("events = 3", "{file}:1: events is a table, written [events]"),
    ("[[events]]", "{file}:1: events is a table, written [events]"),
    (
        "events.p0.queue_size = 0",
        "{file}:1: events.p0.queue_size = 0: expected an integer from 1 to 1000000",
    ),
    (
        '[events.p0]\nqueue_size = "many"',
        '{file}:2: events.p0.queue_size = "many": expected an integer from 1 to 1000000',
    ),
    (
        "cache = { pool_max = true }",
        "{file}:1: cache.pool_max = true: expected an integer from 10 to 500",
    ),
    (
        "[cache]\npool_max = 501",
        "{file}:2: cache.pool_max = 501: expected an integer from 10 to 500",
    ),
    (
        f"[cache]\npool_max = 0x{'f' * 5000}",
        "{file}:2: cache.pool_max = a very large integer: expected an integer from 10 to 500",
    ),
    (
        "[cache]\npool_max = [\n 1,\n 2]",
        "{file}:2: cache.pool_max = a list: expected an integer from 10 to 500",
    ),
    (
        "[events.p3]\nsample_rate = nan",
        "{file}:2: events.p3.sample_rate = nan: expected a finite number above 0 and at most 1",
    ),
    (
        '[events.p1]\noverflow = "spill"',
        '{file}:2: events.p1.overflow = "spill": '
        'expected "block" or "collapse" or "drop_oldest" or "sample"',
    ),
    (
        "[embedded]\ntcp = 1",
        "{file}:2: embedded.tcp = 1: expected true or false",
    ),
    ('home = ""', '{file}:1: home = "": expected a path'),
    (
        "[database]\nurl = 5",
        '{file}:2: database.url: expected a text or {{ file = "path" }}',
    ),
    (
        '[database]\nurl = {{ fiel = "x" }}',
        '{file}:2: database.url: expected a text or {{ file = "path" }}',
    ),
    (
        '[database]\nurl = "***"',
        "{file}:2: database.url: *** is the mask of a secret, not the secret itself",
    ),
    (
        '[events.p0]\noverflow = "sample"',
        '{file}:2: events.p0.overflow must stay "block", not "sample": a P0 event is never lost',
    ),
    (
        "[database]\npool_max = 5\npool_min = 6",
        "{file}:2, {file}:3: database.pool_min (6) must not be above pool_max (5)",
    ),
    (
        '[cache]\nurl = "http://host"',
        "{file}:2: cache.url must begin with redis:// or rediss:// or unix://",
    ),
    ("[cache", "{file}:1:7: not valid TOML: Expected ']' at the end of a table declaration"),
    ("a = 1\nb 2", "{file}:2:3: not valid TOML: Expected '=' after a key in a key/value pair"),
    ("home = 1\nhome = 2", "{file}:2:9: not valid TOML: Cannot overwrite a value"),
    ("home = ", "{file}:1:8: not valid TOML: Invalid value"),
    ("a = " + "[" * 100_000, "settings file {file} is nested too deeply"),
    (b'home = "\xff"', "settings file {file} is not UTF-8 text (line 1)"),
    (
        b"\xef\xbb\xbfhome = 1",
        "settings file {file} begins with a byte order mark; remove it",
    ),
    (b"#" * 1_000_001, "settings file {file} is larger than 1000000 bytes"),
]


@pytest.mark.parametrize(("text", "line"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_a_bad_file_is_refused_in_one_line(write: Write, text: str | bytes, line: str) -> None:
    path = write(text.replace("{{", "{").replace("}}", "}") if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as refusal:
        load(path, {})
    assert str(refusal.value) == line.format(file=path)
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_renamed_key_is_refused_with_its_new_name(write: Write, old: str, new: str) -> None:
    path = write(f"[{old}]\nseed = 1\n" if old == "demo" else f"{old} = 1\n")
    with pytest.raises(ConfigError) as refusal:
        load(path, {})
    assert str(refusal.value) == f"{path}:1: unknown key {old}; it was renamed to {new}"
    assert refusal.value.exit_code == 2


def test_all_problems_are_reported_at_once(write: Write) -> None:
    path = write("[events.p0]\nqueue_sise = 5\nqueue_size = 0\n[cache]\npool_max = 1\nurl = 3\n")
    with pytest.raises(ConfigError) as refusal:
        load(path, {"QTS_EVENTS__P1__QUEUE_SIZE": "x", "QTS_NOPE": "1"})
    places = [line.split(": ")[0] for line in str(refusal.value).splitlines()]
    variables = ["QTS_NOPE", "QTS_EVENTS__P1__QUEUE_SIZE"]
    assert sorted(places) == sorted([*(f"{path}:{line}" for line in (2, 3, 5, 6)), *variables])


@pytest.mark.parametrize(
    ("pool_max", "environ"), [('"x"', {}), ("5", {"QTS_DATABASE__POOL_MAX": "x"})]
)
def test_a_refused_value_causes_no_second_error_of_its_table(
    write: Write, pool_max: str, environ: dict[str, str]
) -> None:
    path = write(f"[database]\npool_max = {pool_max}\npool_min = 500\n")
    with pytest.raises(ConfigError) as refusal:
        load(path, environ)
    assert str(refusal.value).count("\n") == 0


def test_a_line_is_found_past_strings_that_look_like_settings(write: Write) -> None:
    path = write(
        'home = """\n[cache]\npool_max = 1\n"""\r\n# [cache]\n[cache] # x\n\npool_max = 1\n'
    )
    with pytest.raises(ConfigError, match=r"^[^\n]*qts\.toml:8: cache\.pool_max = 1: [^\n]*$"):
        load(path, {})


def test_a_huge_list_costs_line_numbers_not_time(write: Write) -> None:
    path = write("list = [\n" + "1,\n" * 100_000 + "]\n[cache]\npool_max = 1\n")
    with pytest.raises(ConfigError) as refusal:
        load(path, {})
    assert f"{path}: cache.pool_max = 1: expected" in str(refusal.value)


def test_missing_directory_pipe_loop_and_unreadable_files_are_refused(
    write: Write, tmp_path: Path
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    write("", "below/file")
    (tmp_path / "below").chmod(0)
    reasons = {
        "missing": "No such file or directory",
        "loop": "Too many levels of symbolic links",
        "pipe": "it is not a regular file",
        ".": "it is a directory",
    }
    for name, reason in reasons.items():
        with pytest.raises(ConfigError) as refusal:
            load(Path(name), {})
        assert str(refusal.value) == f"cannot read settings file {name}: {reason}"
    with ordinary_user(), pytest.raises(ConfigError, match=r"below/file: Permission denied$"):
        load(tmp_path / "below" / "file", {})
    (tmp_path / "below").chmod(0o700)


@settings(max_examples=20)  # two hundred settings each
@given(table=st.sampled_from([(), *schema_of(Config).tables]), key=TEXT, value=CONFIGS)
def test_any_unknown_key_at_any_level_is_refused_and_named(
    table: tuple[str, ...], key: str, value: Config, tmp_path_factory: pytest.TempPathFactory
) -> None:
    schema = schema_of(Config)
    assume((*table, key) not in schema.settings and (*table, key) not in schema.tables)
    lines = render(value, {}, Secret.reveal).split("\n")
    header = f"[{'.'.join(table)}]"
    if not table:
        at = 0
    elif header in lines:
        at = lines.index(header) + 1
    else:
        lines, at = [*lines, header], len(lines) + 1
    path = tmp_path_factory.getbasetemp() / "unknown.toml"
    path.write_text("\n".join([*lines[:at], f"{toml(key)} = 1", *lines[at:]]))
    path.chmod(0o600)
    with pytest.raises(ConfigError) as refusal:
        load(path, {})
    expected = f"{path}:{at + 1}: unknown key {dotted((*table, key))}; "
    assert str(refusal.value).startswith(expected)
    assert len(str(refusal.value).splitlines()) == 1


@settings(max_examples=20)
@given(config=CONFIGS)
def test_what_show_renders_loads_back_equal(
    config: Config, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.toml"
    path.write_text(render(config, {}, Secret.reveal))
    path.chmod(0o600)
    assert load(path, {}) == config


@settings(max_examples=20)
@given(config=CONFIGS)
def test_every_key_is_found_on_its_own_line(
    config: Config, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "lines.toml"
    path.write_text(render(config, {}, Secret.reveal))
    path.chmod(0o600)
    lines = read(path).text.split("\n")
    for name, origin in resolve(path, {}).origins.items():
        line = lines[int(origin.where.rpartition(":")[2]) - 1]
        assert line.startswith(f"{name.rpartition('.')[2]} = ")


def test_search_order(write: Write, tmp_path: Path) -> None:
    def size(path: Path | None, environ: dict[str, str]) -> int:
        return load(path, environ).events.p0.queue_size

    def file(name: str, queue_size: int) -> Path:
        return write(f"[events.p0]\nqueue_size = {queue_size}\n", name)

    environ = {"QTS_HOME": str(tmp_path / "home")}
    assert size(None, environ) == 100
    file("home/qts.toml", 1)
    assert size(None, environ) == 1
    file("qts.toml", 2)
    assert size(None, environ) == 2
    environ["QTS_CONFIG"] = str(file("named.toml", 3))
    assert size(None, environ) == 3
    assert size(file("explicit.toml", 4), environ) == 4


@pytest.mark.parametrize("name", ["gone.toml", ""])
def test_a_file_named_by_the_environment_must_exist(write: Write, name: str) -> None:
    write("", "qts.toml")
    with pytest.raises(
        ConfigError, match=r"^(cannot read settings file gone\.toml|QTS_CONFIG is empty)"
    ):
        load(None, {"QTS_CONFIG": name})


def test_a_dangling_link_is_not_taken_for_no_file(tmp_path: Path) -> None:
    Path("qts.toml").symlink_to("gone.toml")
    with pytest.raises(ConfigError, match=r"qts\.toml: No such file"):
        load(None, {})


def test_home_is_relative_to_the_file_that_names_it(write: Write, tmp_path: Path) -> None:
    assert load(write('home = "data"', "deep/qts.toml"), {}).home == tmp_path / "deep" / "data"
    assert load(None, {"QTS_HOME": "data"}).home == tmp_path / "data"
    assert load(write('home = "~/data"'), {}).home == tmp_path / "user" / "data"


def test_a_lane_keeps_its_other_defaults() -> None:
    lane = load(None, {"QTS_EVENTS__P3__QUEUE_SIZE": "7"}).events.p3
    assert (lane.queue_size, lane.overflow, lane.sample_rate) == (7, "sample", 0.1)


def test_defaults_are_the_documented_ones() -> None:
    config = load(None, {})
    lanes = [config.events.p0, config.events.p1, config.events.p2, config.events.p3]
    assert [(lane.queue_size, lane.overflow) for lane in lanes] == [
        (100, "block"),
        (10_000, "drop_oldest"),
        (1_000, "collapse"),
        (50_000, "sample"),
    ]
    cache = config.cache
    assert (cache.pool_max, cache.socket_timeout_ms, cache.connect_timeout_ms) == (50, 100, 500)
    assert config == Config()


def test_a_config_is_frozen() -> None:
    with pytest.raises(AttributeError):
        load(None, {}).events.p0.queue_size = 5  # type: ignore[misc]
