"""Strategies on a machine of their own that keep a record, so that a crash costs them nothing.

Every strategy appends what it handled to a file. After a crash the next start reads the file and
tells the sink how far each stream had come: nothing is handled twice, nothing is left out.

    python sink.py --nats nats://127.0.0.1:4222 --run monday --record handled.bin baseline

Start the other half anywhere: qts distributed source baseline --run monday --nats ...
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np

from qts.domain import QtsError, Secret
from qts.router import EdgeConfig, Scenario, Sink, batch, load_scenario

# One line of the record. A record in a database would be written with the strategy's own rows.
HANDLED = np.dtype([("producer", "u1"), ("type", "u1"), ("sequence", "<u8")])


class Record:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        size = os.fstat(self._file).st_size
        os.ftruncate(self._file, size - size % HANDLED.itemsize)  # cut off in its last line
        self.rows = np.fromfile(path, HANDLED)

    def positions(self, scenario: Scenario) -> dict[tuple[int, int], int]:
        """The last sequence number of every (producer, type) that comes in order."""
        ordered = {kind for kind, rule in scenario.stage2.items() if rule.ordering_required}
        # Of the rows of one stream the last wins.
        return {(p, t): s for p, t, s in self.rows.tolist() if t in ordered}

    def handle(self, messages: np.ndarray[tuple[int], np.dtype[np.void]]) -> None:
        """The strategy: all it does is to note what it got."""
        rows = np.empty(len(messages), HANDLED)
        rows["producer"], rows["type"] = messages["producer_id"], messages["msg_type"]
        rows["sequence"] = messages["sequence_number"]
        os.write(self._file, rows.tobytes())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario")
    parser.add_argument("--nats", default=os.environ.get("QTS_NATS_URL", "nats://127.0.0.1:4222"))
    parser.add_argument("--run", required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--patience", type=float, default=10.0)
    given = parser.parse_args()
    try:
        scenario, record = load_scenario(given.scenario), Record(given.record)
        sink = Sink(
            scenario,
            EdgeConfig(url=Secret(given.nats), run=given.run, patience_s=given.patience),
            strategies={n: batch(record.handle) for n in range(scenario.strategies.count)},
            positions=record.positions(scenario),
        )
        sink.start()
    except QtsError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    while not sink.wait(0.2):
        pass
    print(sink.report.render())
    return 0 if sink.report.verdict == "PASSED" else 1


if __name__ == "__main__":
    sys.exit(main())
