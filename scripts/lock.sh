#!/usr/bin/env bash
# Pin every package with its hashes, for any platform: dev.txt for development, bench.txt for benchmarks,
# peers.txt for the peers that do not fit beside those, clients.txt for the clients of others, wheel.txt for
# building a wheel, run.txt for running an installed one.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$(cd "${VENV:-.venv}/bin" && pwd):$PATH"
export PATH

pin() {
  uv pip compile --quiet --universal --python-version "${python:-3.11}" --generate-hashes --no-header --no-annotate "$@"
}

pin pyproject.toml --extra embedded --extra export --extra kafka --extra nats --extra otel --extra top --group dev \
  --output-file requirements/dev.txt "$@"
# A separate set: the peers pin some of our dependencies to older versions.
pin pyproject.toml --extra bench --extra embedded --extra nats --group build --output-file requirements/bench.txt "$@"
# And others, which also need a newer Python.
python=3.12 pin --group peers --output-file requirements/peers.txt "$@"
# A separate set for the same reason: the clients that make clients runs.
pin pyproject.toml --group clients --output-file requirements/clients.txt "$@"
# The versions of dev.txt, which the tests ran with.
pin --group wheel --constraints requirements/dev.txt --output-file requirements/wheel.txt "$@"
pin pyproject.toml --extra embedded --extra nats --extra otel --extra top --constraints requirements/dev.txt \
  --output-file requirements/run.txt "$@"
