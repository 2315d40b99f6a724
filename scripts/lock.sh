#!/usr/bin/env bash
# Pin every package with its hashes, for any platform: dev.txt for development, bench.txt for benchmarks.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$(cd "${VENV:-.venv}/bin" && pwd):$PATH"
export PATH

pin() {
  uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
    --no-header --no-annotate "$@"
}

pin --extra embedded --extra export --extra kafka --extra nats --extra otel --extra top --group dev \
  --output-file requirements/dev.txt "$@"
# A separate set: the peers pin some of our dependencies to older versions.
pin --extra bench --extra embedded --extra nats --group build --output-file requirements/bench.txt "$@"
