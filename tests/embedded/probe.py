"""Print what a process got from its parent."""

import io
import json
import os
import signal
import sys
from pathlib import Path

OF_C = ("COLUMNS", "LC_CTYPE", "LINES")  # C libraries set them behind os.environ
environ = {name: value for name, value in os.environ.items() if name not in OF_C}

print(
    json.dumps(
        {
            "arguments": sys.argv[1:],
            "environ": environ,
            "command": Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode(),
            "folder": os.getcwd(),  # noqa: PTH109
            "path": sys.path,
            "parent": os.getppid(),
            "user": (os.getuid(), os.getgid(), os.getgroups()),
            "session": os.getsid(0) == os.getpid(),
            "umask": os.umask(0),
            "buffered": isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.write_through,
            "encodings": [sys.stdin.encoding, sys.stdout.encoding, sys.stderr.errors],
            "terminal": sys.stdout.isatty(),
            "input": sys.stdin.read(),
            "files": sorted(os.listdir("/proc/self/fd"))[:3],  # noqa: PTH208
            "signals": {
                str(number): str(signal.getsignal(number))[:20] for number in (1, 2, 13, 15, 17)
            },
            "name": __name__,
        }
    )
)
sys.exit(7)
