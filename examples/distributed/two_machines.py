"""Both halves of a run as two processes on one machine, with a temporary NATS server.

python two_machines.py [SECONDS]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from qts.embedded import Home, NatsServer

SINK = Path(__file__).with_name("sink.py")
SOURCE = "import sys; from qts.cli import main; main(sys.argv[1:])"


def main(seconds: str = "2") -> int:
    with tempfile.TemporaryDirectory() as folder, NatsServer(Home.at(Path(folder, "home"))) as nats:
        environment = {**os.environ, "QTS_NATS_URL": nats.url.reveal()}
        record = str(Path(folder, "handled.bin"))
        sink = [sys.executable, str(SINK), "--run", "example", "--record", record, "baseline"]
        source = [sys.executable, "-c", SOURCE, "distributed", "source", "baseline"]
        source += ["--run", "example", "--duration", f"{seconds}s"]
        halves = [subprocess.Popen(half, env=environment) for half in (sink, source)]
        return max(half.wait() for half in halves)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
