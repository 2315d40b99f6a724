"""Grafana dashboard, generated from a table of panels and the alert rules."""

from __future__ import annotations

from typing import Any

import msgspec

from qts.notify.rules import RULES

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
