"""Imports point to lower layers; wrong imports are found."""

from __future__ import annotations

from pathlib import Path

import pytest

import qts
from tests.architecture.layers import LAYERS, violations

SOURCE = Path(qts.__file__).parent


def test_imports_point_down() -> None:
    assert violations(SOURCE) == []


def test_every_package_has_a_layer() -> None:
    packages = {
        p.stem for p in SOURCE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
    }
    layered = {package for layer in LAYERS for package in layer}
    assert packages - {"__init__", "__main__"} <= layered


@pytest.mark.parametrize(
    ("file", "source", "reason"),
    [
        ("domain/money.py", "from qts.cache import Store", "domain imports cache"),
        ("domain/money.py", "import qts.cache", "domain imports cache"),
        ("domain/money.py", "from ..cache import Store", "domain imports cache"),
        ("domain/money.py", "def f():\n    from qts import cache", "domain imports cache"),
        ("cache/store.py", "from qts.outbox import Bus", "cache imports outbox"),
        ("telemetry.py", "from qts.domain import Clock", "telemetry imports domain"),
        (
            "orders/manager.py",
            "from qts.cache.redis import connect",
            "imports an inner module of cache",
        ),
        ("orders/manager.py", "from qts._native import Ring", "imports _native"),
        ("orders/manager.py", "from qts.common import helper", "common is not a package"),
        ("common/helper.py", "from qts.domain import Clock", "common is not a package"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, file: str, source: str, reason: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    (found,) = violations(tmp_path)
    assert found.startswith(f"{file}:")
    assert reason in found


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("orders/manager.py", "from qts.cache import Store\nfrom qts.domain import Clock"),
        (
            "orders/manager.py",
            "from qts.orders.lifecycle import State\nfrom .lifecycle import State",
        ),
        ("app.py", "from qts.cache.redis import connect"),
        ("events/lanes.py", "from qts._native import Ring"),
        ("__init__.py", "from qts.domain import Clock"),
        ("orders/manager.py", "import asyncio, msgspec"),
    ],
)
def test_a_right_import_passes(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    assert violations(tmp_path) == []
