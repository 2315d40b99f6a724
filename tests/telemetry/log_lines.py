"""Stream that parses the log lines written to it."""

from __future__ import annotations

import io
import json
from typing import Any


class Lines(io.StringIO):
    def parsed(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]

    def only(self) -> dict[str, Any]:
        (line,) = self.parsed()
        return line
