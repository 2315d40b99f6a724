"""Nothing is decorative: what the product defines is published, handled, read, raised or called.

`ALLOWED` lists what is there for users alone, or used in a way that the source does not show. The
checks are tested below with samples that nothing reaches.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import msgspec
import pytest
from msgspec import inspect

import qts
from qts.config import Config
from qts.events import Catalogue
from qts.outbox import config as outbox_config
from qts.outbox.config import STREAMS
from qts.pipeline.exits import POSITION_FREEZE
from qts.risk import (
    CODES,
    EMERGENCY_ORDER,
    REASONS,
    AccountFacts,
    Exposure,
    QuoteSnapshot,
    RiskSnapshot,
    Switches,
)
from tests.architecture.reachability import (
    Sources,
    uncalled_methods,
    unraised_codes,
    unreached_streams,
    unreached_types,
    unread_settings,
    unused_fields,
)

SOURCE = Path(qts.__file__).parent

ALLOWED = {
    "INDICATOR_UPDATE is not *": "users publish their own indicators; no built-in one does",
    "Ttls.*": "read by the name of the region: Ttls.of",
    "OutboxConfig.*": "read by the name of the stream: OutboxConfig.streams",
    "VenuesConfig.kis": "read by the name of the venue: venue_settings",
    "DashboardConfig.acknowledge": "a consent, which only the check of the settings reads",
    "Cache.try_precheck": "the cache as a library: a PreCheck that never waits",
    "Router.*": "the router as a library: live use by other programs (examples)",
    "EventEngine.*": "the lanes as a library: requests with an answer, manual pauses, audit",
}

# What is compared in each class: how a snapshot's part is called where it is read.
SNAPSHOTS: dict[type[msgspec.Struct], tuple[str, ...]] = {
    RiskSnapshot: ("snapshot",),
    Exposure: ("exposure",),
    AccountFacts: ("facts",),
    QuoteSnapshot: ("market", "quote"),
    Switches: ("switches",),
}
CLASSES = (
    ("cache/cache.py", "Cache"),
    ("cache/region.py", "CacheRegion"),
    ("cache/region_kinds.py", "ReadThroughRegion"),
    ("cache/region_kinds.py", "PushRegion"),
    ("cache/cache.py", "TradeCounter"),
    ("router/router.py", "Router"),
    ("events/engine.py", "EventEngine"),
    ("risk/micro_risk_loop.py", "MicroRiskLoop"),
)


@pytest.fixture(scope="module")
def findings() -> list[str]:
    return all_findings(Sources(SOURCE))


def event_types() -> list[str]:
    return [each.name for each in (*Catalogue(), EMERGENCY_ORDER, POSITION_FREEZE)]


def stream_constants() -> list[str]:
    return [name for name, value in vars(outbox_config).items() if value in tuple(STREAMS)]


def setting_fields(kind: type[msgspec.Struct] = Config) -> Iterator[tuple[str, str]]:
    """Yield every field of the settings with the struct that defines it."""
    seen, left = set[type](), [kind]
    while left:
        struct = left.pop()
        if struct in seen:
            continue
        seen.add(struct)
        for field in inspect.type_info(struct).fields:  # type: ignore[attr-defined]
            yield struct.__name__, field.name
            left += structs_in(field.type)


def structs_in(kind: inspect.Type) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, inspect.StructType):
        yield kind.cls
    inner = [getattr(kind, name, None) for name in ("type", "item_type", "key_type", "value_type")]
    for each in (*inner, *getattr(kind, "types", ())):
        if isinstance(each, inspect.Type):
            yield from structs_in(each)


def beyond_allowed(found: list[str]) -> list[str]:
    return [each for each in found if not any(fnmatch(each, name) for name in ALLOWED)]


def all_findings(sources: Sources) -> list[str]:
    found = unreached_types(sources, event_types())
    found += unreached_streams(sources, stream_constants())
    found += unread_settings(sources, setting_fields())
    found += unraised_codes(sources, [*CODES, *REASONS])
    for struct, receivers in SNAPSHOTS.items():
        found += unused_fields(sources, struct.__name__, struct.__struct_fields__, receivers)
    for file, name in CLASSES:
        found += uncalled_methods(sources, file, name)
    return found


def test_everything_is_reached(findings: list[str]) -> None:
    assert beyond_allowed(findings) == []


def test_exceptions_are_few_and_all_needed(findings: list[str]) -> None:
    assert len(ALLOWED) <= 15
    assert [name for name in ALLOWED if not any(fnmatch(each, name) for each in findings)] == []


# --- the checks find what is planted -------------------------------------------------------------

PLANTED = "pipeline/planted.py"


def planted(text: str) -> Sources:
    return Sources(SOURCE / "strategies", {PLANTED: text})


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("", {"published", "handled"}),
        ('engine.on("PLANTED", handler)', {"published"}),
        ('emit("PLANTED", payload)', {"handled"}),
        ('if event.event_type == "PLANTED":\n    pass', {"published", "handled"}),
        ('engine.on("PLANTED", handler)\nemit("PLANTED", payload)', set()),
        ('engine.on("PLAN*", handler)\nemit("PLANTED", payload)', set()),
        ('for name in ("PLANTED",):\n    engine.on(name, handler)', {"published"}),
        ('OWN = EventType("PLANTED", 1, Payload)\nengine.on(OWN.name, handler)', {"published"}),
    ],
)
def test_a_planted_event_type_is_found(text: str, missing: set[str]) -> None:
    found = unreached_types(planted(text), ["PLANTED"])
    assert found == [
        f"PLANTED is not {kind}" for kind in ("published", "handled") if kind in missing
    ]


def test_what_is_no_run_publishes_nothing() -> None:
    demo = Sources(SOURCE / "strategies", {"verify/load.py": 'emit("PLANTED", payload)'})
    assert "PLANTED is not published" in unreached_types(demo, ["PLANTED"])


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("streams = [PLANTED]", ["publisher", "handler"]),
        ("OutboxEvent.of(PLANTED, payload, aggregate)", ["handler"]),
        ("dispatcher.on(PLANTED, Command)(handle)", ["publisher"]),
        ("for stream in (OTHER, PLANTED):\n    dispatcher.on(stream, C)(handle)", ["publisher"]),
    ],
)
def test_a_planted_stream_is_found(text: str, missing: list[str]) -> None:
    found = unreached_streams(planted(text), ["PLANTED"])
    assert found == [f"PLANTED has no {kind}" for kind in missing]


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        ("", False),
        ("class PlantedConfig:\n    def __post_init__(self):\n        self.planted", False),
        ("class Other:\n    def f(self):\n        return self.planted", False),
        ("config.planted = 1", False),
        ("wait(config.planted)", True),
        ("class PlantedConfig:\n    def url(self):\n        return self.planted", True),
    ],
)
def test_a_planted_setting_is_found(text: str, is_read: bool) -> None:
    found = unread_settings(planted(text), [("PlantedConfig", "planted")])
    assert found == ([] if is_read else ["PlantedConfig.planted"])


@pytest.mark.parametrize(
    ("text", "is_raised"),
    [
        ('if code == "FS999":\n    pass', False),
        ('NOTICES = ["FS999"]', False),
        ('"""Raises FS999."""', False),
        ('REASONS = {"G_X": "FS999"}', False),
        ('replace(cycle, code="FS999")', False),
        ('trip("FS999", text)', True),
        ('def refusal():\n    return "FS999 no price"', True),
        ('GUARDRAILS = {"G_X": "FS999"}', True),
        ('yield "FS999", text', True),
    ],
)
def test_a_planted_code_is_found(text: str, is_raised: bool) -> None:
    assert unraised_codes(planted(text), ["FS999"]) == ([] if is_raised else ["FS999"])


def test_a_planted_field_is_found() -> None:
    text = "Planted(set_only=1, both=2)\nprint(planted.read_only, planted.both, other.set_only)"
    fields = ["set_only", "read_only", "both"]
    assert unused_fields(planted(text), "Planted", fields, ["planted"]) == [
        "Planted.read_only is not set",
        "Planted.set_only is not read",
    ]


def test_a_planted_method_is_found() -> None:
    text = (
        "class Planted:\n"
        "    def called(self): ...\n"
        "    def uncalled(self): self.uncalled()\n"
        "    def _private(self): ...\n"
        "planted.called()\n"
    )
    assert uncalled_methods(planted(text), PLANTED, "Planted") == ["Planted.uncalled"]
