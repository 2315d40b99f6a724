"""The last run of the router, kept in the home: what `qts route` did is what the page shows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

FILE = "router.json"


def keep_route(home: Path, report: Mapping[str, Any], at: float) -> bool:
    """Whole or not at all; False where there is no home to keep it in."""
    if not home.is_dir():
        return False
    draft = home / f"{FILE}.{os.getpid()}"
    draft.write_bytes(msgspec.json.encode({"at": at, **report}))
    draft.replace(home / FILE)
    return True


def kept_route(home: Path) -> dict[str, Any] | None:
    """None: none was kept, or it is not to be read."""
    try:
        return msgspec.json.decode((home / FILE).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None
