"""Record a simulated minute, replay it, and print the surges.

python examples/observe_replay.py
"""

from __future__ import annotations

import asyncio
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from qts.domain import SystemClock
from qts.feed import (
    FeedCallbacks,
    FeedConfig,
    Observer,
    QuoteIngest,
    Recorder,
    Surge,
    read_records,
    replay,
)
from qts.venues import Quote

OPEN = datetime(2026, 11, 16, 0, 0, tzinfo=UTC)  # 09:00 in Seoul


def record_a_minute(folder: Path) -> None:
    recorder = Recorder(folder, SystemClock())
    ingest = QuoteIngest(FeedConfig(), Observer([recorder.write]), "example", mode="SIMULATION")
    for second in range(60):
        price = 71_900 if second < 40 else 74_500  # 3.6 % up
        quote = Quote("005930", price, second * 1_000, 0.0, 0.0, {}, "example")
        ingest.ingest(quote, float(second), OPEN + timedelta(seconds=second))
    recorder.close()


async def replay_folder(folder: Path) -> tuple[int, list[Surge]]:
    surges: list[Surge] = []
    ingest = QuoteIngest(
        FeedConfig(), Observer([]), "replay", FeedCallbacks(on_surge=surges.append)
    )
    return await replay(read_records(folder), ingest, SystemClock()), surges


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        record_a_minute(Path(name))
        count, surges = asyncio.run(replay_folder(Path(name)))
    print(f"{count} records")
    for surge in surges:
        print(f"{surge.symbol} moved {surge.change:+.1%}")


if __name__ == "__main__":
    main()
