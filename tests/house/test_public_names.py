"""The names users may rely on: a change here is a change of contract, and is made on purpose."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

PUBLIC: dict[str, set[str]] = {}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_locked(module: str) -> None:
    assert set(importlib.import_module(module).__all__) == PUBLIC[module]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_there(module: str) -> None:
    face = importlib.import_module(module)
    assert [name for name in PUBLIC[module] if not hasattr(face, name)] == []


def test_importing_qts_is_light() -> None:
    """A strategy author pays for what he uses: `import qts` pulls in no driver and no web server."""
    heavy = {"asyncpg", "redis", "typer", "rich", "uvloop", "opentelemetry"}
    code = "import sys, qts; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert heavy.isdisjoint(loaded.stdout.split())
