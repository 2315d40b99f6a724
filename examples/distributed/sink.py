"""Strategies on a separate machine that keep a record, so that no crash loses or repeats messages.

Every strategy appends what it handled to a file. After a crash the next start reads the file and
gives the sink the last position of each stream: nothing is handled twice, nothing is skipped.

    python sink.py --nats nats://127.0.0.1:4222 --run monday --record handled.bin baseline

Start the other half anywhere: qts dev router source baseline --run monday --nats ...
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np

from qts.domain import QtsError, Secret
from qts.router import EdgeConfig, Scenario, Sink, batch, load_scenario

# One row of the record. A strategy that writes to a database would write it in that transaction.
HANDLED = np.dtype([("producer", "u1"), ("type", "u1"), ("sequence", "<u8")])


class Record:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        size = os.fstat(self._file).st_size
        os.ftruncate(self._file, size - size % HANDLED.itemsize)  # drop an incomplete last row
        self.rows = np.fromfile(path, HANDLED)

    def positions(self, scenario: Scenario) -> dict[tuple[int, int], int]:
        """Return the last sequence number of every (producer, type) that requires order."""
        ordered = {kind for kind, rule in scenario.stage2.items() if rule.ordering_required}
        # The last row of a stream wins.
        return {(p, t): s for p, t, s in self.rows.tolist() if t in ordered}

    def handle(self, messages: np.ndarray[tuple[int], np.dtype[np.void]]) -> None:
        """Record the messages: the whole work of this strategy."""
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
    parser.add_argument("--timeout", "--patience", type=float, default=10.0)
    arguments = parser.parse_args()
    try:
        scenario, record = load_scenario(arguments.scenario), Record(arguments.record)
        sink = Sink(
            scenario,
            EdgeConfig(url=Secret(arguments.nats), run=arguments.run, timeout_s=arguments.timeout),
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
