"""Alert rules of rules.toml, for the built-in watcher, Prometheus, Grafana and the documentation.

A rule compares one metric with a threshold: its growth in a window, or its current value. `qts run`
exports every metric in the file; a test checks that. The Grafana dashboard is generated from a
table of panels and the rules.
"""

from __future__ import annotations

import importlib.resources
import tomllib
from typing import Any, Literal

import msgspec

from qts.notify.message import Severity

SCRAPES = 'up{job="qts"}'  # only Prometheus has this metric


class AlertRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Threshold of a metric. With `window_s` 0 it applies to the value, else to its growth."""

    name: str
    metric: str
    labels: dict[str, str] = {}
    window_s: int = 0
    op: Literal[">=", ">", "<"] = ">="
    threshold: float
    for_s: int = 0
    severity: Severity
    text: str
    action: str
    reported_by_event: bool = False  # an event already sends a message with details

    @property
    def selector(self) -> str:
        inside = ",".join(f'{name}="{value}"' for name, value in sorted(self.labels.items()))
        return self.metric + (f"{{{inside}}}" if inside else "")

    @property
    def expression(self) -> str:
        """Return the rule as a PromQL expression."""
        if self.window_s:
            value = f"sum(increase({self.selector}[{_duration(self.window_s)}]))"
        else:
            value = f"{'min' if self.op == '<' else 'max'}({self.selector})"
        return f"{value} {self.op} {self.threshold:g}"

    def holds(self, value: float) -> bool:
        if self.op == "<":
            return value < self.threshold
        return value > self.threshold if self.op == ">" else value >= self.threshold


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    rule: tuple[AlertRule, ...]


def _load_rules() -> tuple[AlertRule, ...]:
    text = importlib.resources.files("qts.notify").joinpath("rules.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), _Table).rule


RULES = _load_rules()


def _duration(seconds: int) -> str:
    return f"{seconds // 60}m" if seconds % 60 == 0 else f"{seconds}s"


def prometheus_rules() -> dict[str, object]:
    """Return the rules as a Prometheus rule file."""
    rules = [
        {
            "alert": f"Qts{rule.name}",
            "expr": rule.expression,
            "for": _duration(rule.for_s) if rule.for_s else "0s",
            "labels": {"severity": rule.severity},
            "annotations": {"summary": f"QTS: {rule.text}", "action": rule.action},
        }
        for rule in RULES
    ]
    down = {
        "alert": "QtsDown",
        "expr": f"{SCRAPES} == 0 or absent({SCRAPES})",
        "for": "2m",
        "labels": {"severity": "critical"},
        "annotations": {
            "summary": "QTS does not answer",
            "action": "systemctl status qts; positions at the venue stay as they are",
        },
    }
    return {"groups": [{"name": "qts", "interval": "15s", "rules": [down, *rules]}]}


def alert_table() -> str:
    """Return the rules as the table of docs/operations.md."""
    rows = [
        f"| {rule.name} | `{rule.expression}`{_lasting(rule)} | {rule.severity} | {rule.action} |"
        for rule in RULES
    ]
    return "\n".join(("| alert | when | severity | do |", "|---|---|---|---|", *rows))


def _lasting(rule: AlertRule) -> str:
    return f" for {_duration(rule.for_s)}" if rule.for_s else ""


_WIDTH, _HEIGHT, _TOTAL_WIDTH = 8, 7, 24
_SOURCE = {"type": "prometheus", "uid": "${source}"}


class Panel(msgspec.Struct, frozen=True):
    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]  # expression, legend


PANELS: tuple[Panel, ...] = (
    Panel("Fail-safe (0 NORMAL, 3 LOCKDOWN)", "none", (("everbit_safety_state", "state"),)),
    Panel("May trade", "none", (("everbit_kill_switch_enabled", "{{scope}} {{strategyKey}}"),)),
    Panel(
        "Attempts per minute",
        "none",
        (("sum by (status) (increase(everbit_order_attempt_total[1m]))", "{{status}}"),),
    ),
    Panel(
        "Lane latency p99",
        "s",
        (('qts_events_latency_seconds{part="total",quantile="0.99"}', "{{lane}}"),),
    ),
    Panel(
        "Lane latency p99.9",
        "s",
        (('qts_events_latency_seconds{part="total",quantile="0.999"}', "{{lane}}"),),
    ),
    Panel("Lane fill", "percentunit", (("qts_events_fill_ratio", "{{lane}}"),)),
    Panel(
        "Events per second",
        "none",
        (('sum by (lane) (rate(qts_events_total{outcome="handled"}[1m]))', "{{lane}}"),),
    ),
    Panel(
        "Merged, sampled, dropped per second",
        "none",
        (
            (
                "sum by (lane, outcome)"
                ' (rate(qts_events_total{outcome=~"collapsed|dropped|sampled"}[1m]))',
                "{{lane}} {{outcome}}",
            ),
        ),
    ),
    Panel("Degradation", "none", (("qts_events_level", "level"),)),
    Panel("Outbox backlog", "none", (("everbit_outbox_pending", "{{stream}}"),)),
    Panel("Outbox oldest", "s", (("everbit_outbox_oldest_pending_seconds", "{{stream}}"),)),
    Panel("Dead letters", "none", (("everbit_outbox_dead", "{{stream}}"),)),
    Panel(
        "Handler time p99",
        "s",
        (
            (
                "histogram_quantile(0.99, sum by (le, stream)"
                " (rate(everbit_outbox_handler_duration_seconds_bucket[5m])))",
                "{{stream}}",
            ),
        ),
    ),
    Panel(
        "Cache answers per second",
        "none",
        (("sum by (kind, answer) (rate(qts_cache_requests_total[1m]))", "{{kind}} {{answer}}"),),
    ),
    Panel("PreCheck", "s", (("qts_cache_precheck_seconds", "p{{quantile}}"),)),
    Panel(
        "Gate refusals per minute",
        "none",
        (("sum by (code) (increase(qts_gate_refusals_total[1m]))", "{{code}}"),),
    ),
    Panel(
        "PreCheck refusals per minute",
        "none",
        (("sum by (code) (increase(qts_precheck_refusals_total[1m]))", "{{code}}"),),
    ),
    Panel(
        "Venue requests per second",
        "none",
        (("sum by (venue, outcome) (rate(qts_venue_requests_total[1m]))",
          "{{venue}} {{outcome}}"),),
    ),
    Panel(
        "Venue request time p99",
        "s",
        (
            (
                "histogram_quantile(0.99, sum by (le, venue, endpoint)"
                " (rate(qts_venue_request_seconds_bucket[5m])))",
                "{{venue}} {{endpoint}}",
            ),
        ),
    ),
    Panel("Venue budget left", "none", (("qts_venue_budget_remaining", "{{venue}} {{window}}"),)),
    Panel(
        "Stream reconnects, lost records",
        "none",
        (
            ("sum by (venue) (increase(qts_venue_stream_reconnects_total[5m]))", "{{venue}}"),
            ("increase(qts_records_skipped_total[5m])", "records"),
        ),
    ),
    Panel("Cycles", "none", (("sum by (end) (rate(qts_cycles_total[1m]))", "{{end}}"),)),
    Panel(
        "Notifications",
        "none",
        (("sum by (channel, result) (increase(qts_notifications_total[5m]))",
          "{{channel}} {{result}}"),),
    ),
    Panel("Memory", "bytes", (("process_resident_memory_bytes", "QTS"),)),
    Panel("CPU", "percentunit", (("rate(process_cpu_seconds_total[1m])", "QTS"),)),
    Panel(
        "Host: free share",
        "percentunit",
        (("qts_disk_free_ratio", "disk"), ("qts_memory_free_ratio", "memory")),
    ),
)  # fmt: skip


def grafana_dashboard() -> dict[str, Any]:
    alerts = Panel("Active alerts", "none", tuple((r.expression, r.name) for r in RULES))
    return {
        "uid": "qts",
        "title": "QTS",
        "tags": ["qts"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus", "label": "Source"}
            ]
        },
        "panels": [_panel(index, panel) for index, panel in enumerate((alerts, *PANELS))],
    }


def _panel(index: int, panel: Panel) -> dict[str, Any]:
    columns = _TOTAL_WIDTH // _WIDTH
    return {
        "id": index + 1,
        "title": panel.title,
        "type": "timeseries",
        "datasource": _SOURCE,
        "gridPos": {
            "x": index % columns * _WIDTH,
            "y": index // columns * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "expr": expression,
                "legendFormat": legend,
                "datasource": _SOURCE,
            }
            for number, (expression, legend) in enumerate(panel.queries)
        ],
    }
