"""Names that leave the process: tables, messages, codes, metrics, tags.

`stored_names.json` is a snapshot of them. Stored rows, dashboards and alert rules depend on these
names, so that renaming a class must not change them. A deliberate change is made in the file too.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

import qts
from qts import domain
from qts.app import supervision
from qts.backtest import jobs
from qts.dashboard import actions
from qts.database import Database
from qts.domain import system_events
from qts.events import Catalogue
from qts.orders import messages
from qts.outbox import Envelope, OutboxEvent, uuid7
from qts.outbox.bus import STORED_CODES
from qts.outbox.config import STREAMS
from qts.outbox.handling import classify_error
from qts.pipeline import decision_journal
from qts.risk import CODES, EMERGENCY_ORDER, REASONS

SOURCE = Path(qts.__file__).parent
STORED: dict[str, Any] = json.loads(Path(__file__).with_name("stored_names.json").read_text())
METRIC_FACTORIES = {"counter", "gauge", "histogram", "LatencyWindow", "recorded"}


async def test_tables_and_columns(database: Database) -> None:
    rows = await database.fetch(
        "SELECT table_name, string_agg(column_name, ' ' ORDER BY ordinal_position) AS columns"
        "  FROM information_schema.columns"
        "  JOIN pg_class ON oid = format('%I', table_name)::regclass"
        " WHERE table_schema = 'public' AND NOT relispartition GROUP BY table_name"
    )
    assert {row["table_name"]: row["columns"] for row in rows} == STORED["tables"]


def test_event_types_and_payload_fields() -> None:
    types = [*Catalogue(), EMERGENCY_ORDER]
    assert {each.name: fields(each.payload) for each in types} == STORED["event_types"]


def test_streams_and_envelope() -> None:
    assert sorted(STREAMS) == STORED["streams"]
    assert fields(Envelope) == STORED["envelope"]


def test_bus_messages_and_json_fields() -> None:
    modules = (messages, jobs, supervision, system_events)
    structs = [each for module in modules for each in structs_of(module)]
    assert {each.__name__: fields(each) for each in structs} == STORED["messages"]
    event = OutboxEvent.of("s", messages.CancelOrder(uuid7()), ("A", "1"))
    assert event.envelope.type == "CancelOrder"


def test_structs_stored_as_json() -> None:
    structs = [getattr(domain, name) for name in STORED["structs"]]
    assert {each.__name__: fields(each) for each in structs} == STORED["structs"]


def test_enum_values() -> None:
    enums = [getattr(domain, name) for name in STORED["enums"]]
    assert {each.__name__: " ".join(each) for each in enums} == STORED["enums"]


def test_reason_codes() -> None:
    assert [*CODES, *REASONS] == STORED["codes"]


def test_error_codes() -> None:
    """`last_error_code` of a handler's error; a class of another library is stored by its name."""
    assert {name: STORED_CODES.get(name, name) for name in error_classes()} == STORED["error_codes"]
    assert classify_error(domain.UnreachableError("x")).code == "Unreachable"
    assert classify_error(type("UnreachableError", (OSError,), {})("x")).code == "UnreachableError"


def test_metrics() -> None:
    found = {name for tree in parsed("qts_", "everbit_") for name in metric_names(tree)}
    assert sorted(found) == STORED["metrics"]


def test_action_tags_and_fields() -> None:
    assert tags(actions) == STORED["actions"]


def test_journal_tags() -> None:
    """Journal entries are arrays: the tag and the number of fields count."""
    found = tags(decision_journal)
    assert {tag: len(names.split()) for tag, names in found.items()} == STORED["journal"]


def fields(struct: type[msgspec.Struct]) -> str:
    return " ".join(struct.__struct_encode_fields__)


def structs_of(module: ModuleType) -> list[type[msgspec.Struct]]:
    return [
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, msgspec.Struct)
        and each.__module__ == module.__name__
    ]


def tags(module: ModuleType) -> dict[str, str]:
    """Return the fields of each tagged struct; a tag that is its class's name is a default."""
    return {
        tag: fields(each)
        for each in structs_of(module)
        if isinstance(tag := each.__struct_config__.tag, str) and tag != each.__name__
    }


def error_classes() -> set[str]:
    """Return the names of QtsError and its subclasses, from the source."""
    bases = {
        node.name: {ast.unparse(base).split(".")[-1] for base in node.bases}
        for tree in parsed("Error(")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error")
    }
    found = {"QtsError"}
    while more := {name for name in bases if bases[name] & found} - found:
        found |= more
    return found


def metric_names(tree: ast.Module) -> list[str]:
    """Names that a source file gives to metrics; `{}` stands for a computed part."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [
        name
        for call in calls
        if call.args
        and ast.unparse(call.func).split(".")[-1] in METRIC_FACTORIES
        and (name := text_of(call.args[0])).startswith(("qts_", "everbit_"))
    ]


def parsed(*words: str) -> list[ast.Module]:
    """Return the source files that contain one of the words: parsing all of them takes seconds."""
    texts = [path.read_text("utf-8") for path in SOURCE.rglob("*.py")]
    return [ast.parse(text) for text in texts if any(word in text for word in words)]


def text_of(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "{}"
