"""The alerts, in one table: from it come the built-in watch, the Prometheus rules and their page.

A rule asks for the figure of one metric: how much it grew in a window, or what it is now. Every
metric named here is exported by `qts run`; a test holds that.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from qts.notify.message import Severity

SCRAPES = 'up{job="qts"}'  # the one figure that only Prometheus can have


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """`window_s` 0: the figure itself, its greatest where there are several."""

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
    told_by_event: bool = False  # the owner hears of it from the event itself, with its details

    @property
    def selector(self) -> str:
        inside = ",".join(f'{name}="{value}"' for name, value in sorted(self.labels.items()))
        return self.metric + (f"{{{inside}}}" if inside else "")

    @property
    def expression(self) -> str:
        """In the language of Prometheus."""
        if self.window_s:
            figure = f"sum(increase({self.selector}[{_span(self.window_s)}]))"
        else:
            figure = f"{'min' if self.op == '<' else 'max'}({self.selector})"
        return f"{figure} {self.op} {self.threshold:g}"

    def holds(self, figure: float) -> bool:
        if self.op == "<":
            return figure < self.threshold
        return figure > self.threshold if self.op == ">" else figure >= self.threshold


RULES: tuple[Rule, ...] = (
    Rule(
        name="OrderUnknown",
        metric="everbit_order_attempt_total",
        labels={"status": "UNKNOWN"},
        window_s=300,
        threshold=1,
        severity="critical",
        text="an order may or may not have reached the venue",
        action="look with qts orders list --state UNKNOWN; never send it again by hand",
        told_by_event=True,
    ),
    Rule(
        name="OrdersThrottled",
        metric="everbit_order_attempt_total",
        labels={"status": "THROTTLED"},
        window_s=300,
        threshold=3,
        severity="critical",
        text="the venue refuses orders because there are too many requests",
        action="trade less often or lower the limits of the key",
    ),
    Rule(
        name="OrdersRejected",
        metric="everbit_order_attempt_total",
        labels={"status": "REJECTED"},
        window_s=300,
        threshold=5,
        severity="warning",
        text="the venue declines orders",
        action="read the reasons with qts orders list --state REJECTED",
    ),
    Rule(
        name="CommandBacklog",
        metric="everbit_outbox_oldest_pending_seconds",
        labels={"stream": "everbit.trade.command"},
        op=">",
        threshold=60,
        severity="critical",
        text="an order has waited for more than a minute to leave",
        action="stop with qts kill on, then look at qts outbox status",
    ),
    Rule(
        name="DeadCommands",
        metric="everbit_outbox_dead",
        labels={"stream": "everbit.trade.command"},
        threshold=1,
        severity="critical",
        text="an order command was given up",
        action="read it with qts outbox list --status DEAD before you requeue it",
    ),
    Rule(
        name="FailSafe",
        metric="everbit_safety_state",
        threshold=2,
        severity="critical",
        text="the fail-safe has stopped trading",
        action="read qts failsafe status, look, then qts failsafe release",
        told_by_event=True,
    ),
    Rule(
        name="SafetyLaneSlow",
        metric="qts_events_latency_seconds",
        labels={"lane": "P0", "part": "total", "quantile": "0.99"},
        op=">",
        threshold=0.010,
        for_s=60,
        severity="warning",
        text="P0 is slower than its 10 ms",
        action="see which handler is slow with qts events status",
    ),
    Rule(
        name="SafetyLaneFull",
        metric="qts_events_fill_ratio",
        labels={"lane": "P0"},
        op=">",
        threshold=0.8,
        severity="critical",
        text="P0's lane is nearly full",
        action="stop with qts kill on; a handler of P0 hangs",
    ),
    Rule(
        name="LoadShed",
        metric="qts_events_level",
        threshold=2,
        for_s=30,
        severity="warning",
        text="events of lower lanes are merged or dropped to keep up",
        action="watch fewer symbols or give the machine more cores",
    ),
    Rule(
        name="CacheOpen",
        metric="qts_cache_breaker_open",
        threshold=1,
        for_s=30,
        severity="warning",
        text="Redis does not answer; reads go to the database",
        action="see docs/operations.md, lost Redis",
    ),
    Rule(
        name="StrategyErrors",
        metric="qts_strategy_errors_total",
        window_s=300,
        threshold=5,
        severity="warning",
        text="a strategy raises errors",
        action="read the log; the strategy is suspended when it goes on",
    ),
    Rule(
        name="DiskFull",
        metric="qts_disk_free_ratio",
        op="<",
        threshold=0.10,
        for_s=600,
        severity="critical",
        text="less than a tenth of the home's disk is free",
        action="move old records away, or shorten outbox.keep_days",
    ),
    Rule(
        name="MemoryShort",
        metric="qts_memory_free_ratio",
        op="<",
        threshold=0.10,
        for_s=600,
        severity="warning",
        text="less than a tenth of the memory is free",
        action="see what uses it; the system may end QTS",
    ),
)


def _span(seconds: int) -> str:
    return f"{seconds // 60}m" if seconds % 60 == 0 else f"{seconds}s"


def prometheus_rules() -> dict[str, object]:
    """As a rule file of Prometheus has it."""
    rules = [
        {
            "alert": f"Qts{rule.name}",
            "expr": rule.expression,
            "for": _span(rule.for_s) if rule.for_s else "0s",
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
            "summary": "QTS: it does not answer",
            "action": "systemctl status qts; positions at the venue stay as they are",
        },
    }
    return {"groups": [{"name": "qts", "interval": "15s", "rules": [down, *rules]}]}


def alert_table() -> str:
    """The rules as the table of docs/operations.md."""
    rows = [
        f"| {rule.name} | `{rule.expression}`{_lasting(rule)} | {rule.severity} | {rule.action} |"
        for rule in RULES
    ]
    return "\n".join(("| alert | when | severity | do |", "|---|---|---|---|", *rows))


def _lasting(rule: Rule) -> str:
    return f" for {_span(rule.for_s)}" if rule.for_s else ""
