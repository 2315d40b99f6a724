"""Feed: from a venue's reply to the recorded snapshot, and the rate limiter of its requests."""

from __future__ import annotations

import gc
import json
import os
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import machine, rate_limiters
from benchmarks.machine import OtherLoad
from benchmarks.measure import Case, Sample, Series, interleave
from benchmarks.plot import bars
from benchmarks.report import Goal, Picture, Result, Row
from qts.domain import SystemClock
from qts.feed import FeedConfig, Observer, QuoteIngest, Recorder
from qts.simulators import KisSimulator, KisSimulatorConfig, MarketConfig
from qts.venues.kis.client import Reply
from qts.venues.kis.quotes import multi_quotes

_SYMBOLS, _PER_CALL = 2500, 30
_SCANS, _QUICK_SCANS = 4, 1
_ROUNDS, _QUICK_ROUNDS = 9, 2
_SCAN_S = 30


def run(quick: bool, progress: Callable[[str], None]) -> Result:
    progress("describing the machine")
    described = machine.describe(quick)
    progress("generating replies with the simulator")
    replies = simulated_replies(_SYMBOLS, _QUICK_SCANS if quick else _SCANS)
    progress("parse, snapshot, detect, record: ours and plain dicts in turn")
    snapshot_rows = _snapshots(replies, quick)
    progress("rate limiter, aiolimiter and pyrate-limiter in turn")
    speed_rows, greed_rows, remarks = rate_limiters.measure(quick)
    notes = [
        "snapshots: from the bytes of a reply to a line on disk, one write a line; ours also masks"
        " secrets and syncs every second",
        "our rate limiter has windows of a second, a minute and a day and four priorities;"
        " aiolimiter has one window",
        "kept across kill -9: SQLite commits every grant; our usage log writes a lease of 16 ahead"
        " and counts all of it as used after a kill",
        *remarks,
    ]
    if described["noisy"]:
        notes.append(f"noisy: others used {described['foreign_cpus']:g} CPUs before the start")
    return Result(
        machine=described,
        rows=(*snapshot_rows, *speed_rows, *greed_rows),
        notes=tuple(notes),
        pictures=(
            Picture(
                "feed-snapshots", bars("Snapshots, from bytes to a line on disk", snapshot_rows)
            ),
            Picture("feed-budget", bars("Permits of a rate limiter", speed_rows)),
            Picture("feed-worst", bars("Most permits in any second", greed_rows)),
        ),
    )


def simulated_replies(symbols: int, scans: int) -> list[bytes]:
    """Return the bodies of multi-symbol quotes as the simulated venue sends them, scan by scan."""
    simulator = KisSimulator(KisSimulatorConfig(market=MarketConfig(symbols=symbols)))
    market, replies = simulator.market, []
    for _ in range(scans):
        for _ in market.advance(market.time + _SCAN_S):
            pass
        codes = market.universe.codes
        for start in range(0, symbols, _PER_CALL):
            query = {}
            for n, code in enumerate(codes[start : start + _PER_CALL], 1):
                query[f"FID_COND_MRKT_DIV_CODE_{n}"] = "J"
                query[f"FID_INPUT_ISCD_{n}"] = code
            replies.append(msgspec.json.encode(simulator.quotes.many(query)))
    return replies


def ours(replies: list[bytes], folder: Path) -> float:
    """Ingest and record the replies with the feed; return snapshots a second."""
    clock = SystemClock()
    recorder = Recorder(folder, clock)
    ingest = QuoteIngest(FeedConfig(), Observer([recorder.write]), uuid.uuid4().hex)
    began = time.perf_counter()
    for body in replies:
        for quote in multi_quotes(msgspec.json.decode(body, type=Reply)):
            ingest.ingest(quote, clock.monotonic_ns() / 1e9, clock.now())
    seconds = time.perf_counter() - began
    recorder.close()
    return recorder.written / seconds


def plain(replies: list[bytes], path: Path) -> float:
    """Do the same with json and dicts: the same record, one write a line."""
    session, number = uuid.uuid4().hex, 0
    last: dict[str, Any] = {}
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    began = time.perf_counter()
    for body in replies:
        for row in json.loads(body)["output"]:
            symbol = row["inter_shrn_iscd"]
            price, volume = float(row["inter2_prpr"]), float(row["acml_vol"])
            at = time.monotonic()
            surge = _has_surge(last, symbol, price, volume, at)
            number += 1
            record = _record(number, session, symbol, price, volume, row, surge)
            os.write(file, (json.dumps(record, ensure_ascii=False) + "\n").encode())
    seconds = time.perf_counter() - began
    os.close(file)
    return number / seconds


def _has_surge(last: dict[str, Any], symbol: str, price: float, volume: float, at: float) -> bool:
    before = last.get(symbol)
    if before is None or price <= 0:
        last[symbol] = {"price": price, "volume": volume, "at": at, "rate": 0.0}
        return False
    change = abs(price - before["price"]) / before["price"] if before["price"] else 0.0
    rate = (volume - before["volume"]) / max(at - before["at"], 1e-9)
    ratio = rate / before["rate"] if before["rate"] else 0.0
    last[symbol] = {"price": price, "volume": volume, "at": at, "rate": rate}
    return change > 0.03 or ratio > 2.0


def _record(
    number: int,
    session: str,
    symbol: str,
    price: float,
    volume: float,
    row: dict[str, Any],
    surge: bool,
) -> dict[str, Any]:
    mode = "burst" if surge else "normal"
    return {
        "schema": 2,
        "number": number,
        "snapshot": {
            "meta": {
                "time": datetime.now(UTC).isoformat(),
                "session_id": session,
                "mode": "PROD",
                "tick_source": "kis_rest",
                "loop_interval_ms": 30_000.0,
            },
            "context": {"source": "market", "stage": "raw", "symbol": symbol, "market": "KRX"},
            "observation": {
                "inputs": {
                    "price": price,
                    "volume": volume,
                    "kis_raw": row,
                    "bid": float(row["inter2_bidp"]),
                    "ask": float(row["inter2_askp"]),
                    "venue_at": 0.0,
                },
                "computed": {},
                "state": {"polling_mode": mode},
            },
        },
    }


def _snapshots(replies: list[bytes], quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        cases = {
            "ours": _trial(lambda: ours(replies, Path(folder) / uuid.uuid4().hex)),
            "plain": _trial(lambda: plain(replies, Path(folder) / uuid.uuid4().hex)),
        }
        found, _ = interleave(cases, _QUICK_ROUNDS if quick else _ROUNDS)
    return [_row(found["ours"], found["plain"])]


def _trial(measure: Callable[[], float]) -> Case:
    def case() -> Sample:
        gc.collect()
        others = OtherLoad()
        value = measure()
        return Sample(value, others.is_disturbing())

    return case


def _row(mine: Series, peer: Series) -> Row:
    return Row(
        name="bytes of a reply to a line on disk",
        metric="median",
        unit="snapshots/s",
        better="higher",
        ours=mine.median,
        peer=peer.median,
        peer_name="json.loads and dicts",
        goals=(Goal("ratio", ">=", 1),),
        note=f"{mine.low:,.0f} to {mine.high:,.0f}{mine.remark}",
    )
