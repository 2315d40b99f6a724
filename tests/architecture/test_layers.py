"""Imports point down; and the test that says so can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

import qts
from tests.architecture.layers import LAYERS, violations

PACKAGE = Path(qts.__file__).parent


def test_imports_point_down() -> None:
    assert violations(PACKAGE) == []


def test_every_room_stands_on_the_ladder() -> None:
    rooms = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    on_ladder = {room for line in LAYERS for room in line}
    assert rooms - {"__init__", "__main__"} <= on_ladder


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("domain/money.py", "from qts.cache import Store", "domain imports cache"),
        ("domain/money.py", "import qts.cache", "domain imports cache"),
        ("domain/money.py", "from ..cache import Store", "domain imports cache"),
        ("domain/money.py", "def f():\n    from qts import cache", "domain imports cache"),
        ("cache/store.py", "from qts.outbox import Bus", "cache imports outbox"),
        ("telemetry.py", "from qts.domain import Clock", "telemetry imports domain"),
        ("orders/desk.py", "from qts.cache.redis import connect", "reaches inside cache"),
        ("orders/desk.py", "from qts._native import Ring", "touches _native"),
        ("orders/desk.py", "from qts.common import helper", "common is not a room"),
        ("common/helper.py", "from qts.domain import Clock", "common is not a room"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, file: str, source: str, complaint: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    (found,) = violations(tmp_path)
    assert found.startswith(f"{file}:")
    assert complaint in found


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("orders/desk.py", "from qts.cache import Store\nfrom qts.domain import Clock"),
        ("orders/desk.py", "from qts.orders.lifecycle import State\nfrom .lifecycle import State"),
        ("app.py", "from qts.cache.redis import connect"),
        ("events/lanes.py", "from qts._native import Ring"),
        ("__init__.py", "from qts.domain import Clock"),
        ("orders/desk.py", "import asyncio, msgspec"),
    ],
)
def test_a_right_import_passes(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    assert violations(tmp_path) == []
