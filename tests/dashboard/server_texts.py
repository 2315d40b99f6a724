"""Sentences of the server that a page can show, read from the functions that write them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "qts"
# Refusals, outcomes of actions, troubles and figures of the run; "*": all functions of a module.
WRITERS = {
    "brokers/lease.py": "_refuse_other describe_holder",
    "cache/call_policy.py": "call_once call_with_retry _attempt",
    "cache/commands.py": "error",
    "cache/connection.py": "*",
    "cache/redis.py": "*",
    "dashboard/action_service.py": (
        "perform _perform _cancel _release _reconcile _set_params validate_params _check"
    ),
    "dashboard/guard.py": "*",
    "dashboard/handlers.py": "decode_params decode_body explain",
    "dashboard/hub.py": "*",
    "dashboard/manual_orders.py": "*",
    "dashboard/pages.py": "*",
    "dashboard/queries.py": "*",
    "dashboard/run_records.py": "*",
    "dashboard/server.py": "_login _socket _convert_errors",
    "database/connection.py": (
        "unreachable outcome_unknown cancelled cannot_write lock_timeout reason"
    ),
    "database/pool.py": "*",
    "domain/errors.py": "name_choices check_name",
    "events/dead_letters.py": "show request_replay",
    "events/monitor.py": "*",
    "feed/planner.py": "description watch_description",
    "feed/recorder.py": "_has_space",
    "notify/alerts.py": "mark_acknowledged",
    "notify/channels.py": "subscribe unsubscribe",
    "orders/manager.py": "cancel _cancel_stop_order",
    "orders/manual_commands.py": "*",
    "outbox/admin.py": "show requeue _dead_letter",
    "pipeline/eteda.py": "_raise_guardrails _overran",
    "pipeline/fill_monitor.py": "_on_fill",
    "pipeline/engine.py": "_alert_of_baseline watch_venue_clock watch_venue_stream",
    "pipeline/manual_orders.py": "*",
    "pipeline/runner.py": "_result_of _failed",
    "pipeline/warm_up.py": "__str__",
    "risk/fail_safe.py": "release",
    "risk/kill_switch.py": "set",
    "risk/micro_risk_loop.py": "volatility check _check_price_ages _check_account _check_escape",
    "risk/position_notices.py": "*",
}
# Calls whose texts no page shows: logs, SQL, and errors of the programmer.
_UNSEEN = re.compile(
    r"^(log|telemetry)\.|AssertionError|RuntimeError|ValueError|TypeError|fetch|execute|re\.match"
)
_NO_SENTENCES = {" - at", " - at ", "read committed", "qts {}"} | {
    "no dead letter has number {}; list() returns all of them"  # of the engine, in Python
}
# Their texts are for the command line and Telegram.
_OTHER_READERS = {"preview_close", "_sale", "_count"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def sentences(name: str) -> Iterator[str]:
    """Yield the sentences of a file; `{}` stands for a value."""
    tree, wanted = ast.parse((SOURCE / name).read_text("utf-8")), WRITERS[name].split()
    functions = [each for each in ast.walk(tree) if isinstance(each, Function)]
    missing = set(wanted) - {each.name for each in functions} - {"*"}
    assert not missing, f"{name} has no function {missing}"
    for function in functions:
        if function.name in _OTHER_READERS:
            continue
        if wanted == ["*"] or function.name in wanted:
            for statement in function.body:
                yield from _texts(statement)


def _texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr | ast.Constant):
        text = _template(node)
        is_sentence = " " in text and re.search("[a-z]{3}", text.replace("{}", ""))
        if is_sentence and text not in _NO_SENTENCES:
            yield text
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    elif not (isinstance(node, ast.Call) and _UNSEEN.search(ast.unparse(node.func))):
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def _template(node: ast.JoinedStr | ast.Constant) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(
        str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values
    )
