"""/metrics of a real run as a scraper sees it; rules and panels ask only for what is there."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from qts import telemetry
from qts.cli.main import app
from qts.notify import RULES, grafana_dashboard, prometheus_rules
from tests.cli.test_run import Qts
from tests.embedded.clients import until

DEPLOY = Path(__file__).parents[2] / "deploy"
CANARY = "canary-8472"
PATIENCE_S = 60.0
# Metrics that appear only after a moment.
TOLD_LATER = (
    "qts_cycles_total",
    "qts_events_latency_seconds",
    "everbit_kill_switch_enabled",
    "everbit_outbox_oldest_pending_seconds",
)
_NAME = re.compile(r"\b(?:everbit|qts|process)_[a-z0-9_]+")
_SELECTOR = re.compile(r"(\w+)\{([^}]*)\}")
_LABEL = re.compile(r'(\w+)=~?"')


def get(url: str) -> tuple[str, str]:
    with urllib.request.urlopen(url, timeout=60) as reply:  # noqa: S310 - our own server
        return reply.read().decode(), reply.headers["Content-Type"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def exposition(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Metrics of one run after it has traded for a moment."""
    port = free_port()
    qts = Qts(
        tmp_path_factory.mktemp("run") / "home",
        "run",
        QTS_TELEMETRY__METRICS_PORT=str(port),
        QTS_TELEMETRY__LOG_LEVEL="error",
        QTS_DASHBOARD__PORT=str(free_port()),
        QTS_NOTIFY__SLACK__URL=f"http://127.0.0.1:1/{CANARY}",
    )
    try:
        qts.until("Ready")
        metrics = f"http://127.0.0.1:{port}/metrics"
        assert until(lambda: all(f"{name}{{" in get(metrics)[0] for name in TOLD_LATER), PATIENCE_S)
        yield get(metrics)[0]
        assert qts.end(signal.SIGINT) == 0
    finally:
        qts.close()


@pytest.fixture
def families(exposition: str) -> list[Metric]:
    return list(text_string_to_metric_families(exposition))


def all_expressions() -> list[str]:
    groups: Any = prometheus_rules()["groups"]
    return [
        *(rule["expr"] for group in groups for rule in group["rules"]),
        *(target["expr"] for panel in grafana_dashboard()["panels"] for target in panel["targets"]),
    ]


def names_of(families: list[Metric]) -> set[str]:
    found = {sample.name for family in families for sample in family.samples}
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    for family in families:  # those of which nothing happened yet have no sample
        found |= {family.name + suffix for suffix in suffixes.get(family.type, ("",))}
    return found


def test_no_rule_and_no_panel_asks_for_what_is_not_exported(families: list[Metric]) -> None:
    used = {name for expression in all_expressions() for name in _NAME.findall(expression)}
    assert len(used) > 20
    assert sorted(used - names_of(families)) == []


def test_no_rule_and_no_panel_asks_for_a_label_that_is_not_there(families: list[Metric]) -> None:
    labels: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    used = [
        (metric, label)
        for expression in all_expressions()
        for metric, inside in _SELECTOR.findall(expression)
        for label in _LABEL.findall(inside)
        if metric != "up"
    ]
    assert len(used) > 5
    assert [each for each in used if each[1] not in labels.get(each[0], set())] == []


def test_every_metric_is_documented_and_bounded(families: list[Metric]) -> None:
    ours = [family for family in families if family.name.startswith(("qts_", "everbit_"))]
    assert [family.name for family in ours if not family.documentation] == []
    assert max(len(family.samples) for family in ours) < 1000


def test_seeds_names_are_there(families: list[Metric]) -> None:
    expected = {
        "everbit_order_attempt_total",
        "everbit_kill_switch_enabled",
        "everbit_market_state",
        "everbit_outbox_pending",
        "everbit_outbox_processing",
        "everbit_outbox_dead",
        "everbit_outbox_oldest_pending_seconds",
        "everbit_outbox_processed_total",
        "everbit_outbox_handler_duration_seconds_bucket",
    }
    assert expected <= names_of(families)


def test_every_state_of_an_attempt_counts_from_zero(exposition: str) -> None:
    for state in ("UNKNOWN", "THROTTLED", "REJECTED"):
        assert f'everbit_order_attempt_total{{status="{state}"}}' in exposition


def test_every_venue_call_is_counted_and_timed_and_the_budget_is_shown(exposition: str) -> None:
    for series in (
        'qts_venue_requests_total{endpoint="tokenP",outcome="ok",venue="kis"}',
        'qts_venue_requests_total{endpoint="tokenP",outcome="throttled",venue="kis"}',
        'qts_venue_request_seconds_count{endpoint="tokenP",venue="kis"}',
        'qts_venue_budget_remaining{venue="kis",window="second"}',
        'qts_venue_budget_remaining{venue="kis",window="day"}',
        'qts_venue_stream_reconnects_total{venue="kis"} 0.0',
        "qts_records_skipped_total ",
    ):
        assert series in exposition


def test_no_secret_is_in_the_exposition(exposition: str) -> None:
    assert CANARY not in exposition


def test_only_metrics_is_served() -> None:
    with telemetry.serve_metrics(0) as port:
        text, kind = get(f"http://127.0.0.1:{port}/metrics?x=1")
        assert kind == telemetry.CONTENT_TYPE
        assert "process_cpu_seconds_total" in text
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"http://127.0.0.1:{port}/")
    with pytest.raises(urllib.error.URLError):
        get(f"http://127.0.0.1:{port}/metrics")


def test_a_taken_port_is_refused_by_name(tmp_path: Path) -> None:
    with telemetry.serve_metrics(0) as port:
        qts = Qts(tmp_path / "home", "run", QTS_TELEMETRY__METRICS_PORT=str(port))
        try:
            code = qts.end()
            assert (code, f"telemetry.metrics_port = {port}" in qts.errors()) == (2, True)
        finally:
            qts.close()


@pytest.mark.parametrize(("verb", "file"), [("rules", "alerts.yaml"), ("grafana", "grafana.json")])
def test_the_shipped_file_is_the_one_the_tables_make(verb: str, file: str) -> None:
    made = CliRunner().invoke(app, ["metrics", verb])
    assert made.exit_code == 0
    assert (DEPLOY / file).read_text() == made.output


def test_the_rule_file_says_in_yaml_what_the_table_says() -> None:
    """Parse the subset of YAML in use: maps, lists and quoted texts."""
    text = CliRunner().invoke(app, ["metrics", "rules"]).output
    alerts = [
        json.loads(line.split("alert: ", 1)[1]) for line in text.splitlines() if "alert:" in line
    ]
    assert alerts == ["QtsDown", *(f"Qts{rule.name}" for rule in RULES)]
    expressions = [
        json.loads(line.split("expr: ", 1)[1]) for line in text.splitlines() if "expr:" in line
    ]
    assert expressions[1:] == [rule.expression for rule in RULES]
    assert all(line.strip()[0] in "#-abcdefghijklmnopqrstuvwxyz" for line in text.splitlines())
