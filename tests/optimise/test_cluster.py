"""`qts optimise --cluster`: workers of a database give the study of one process."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from qts.cli.main import run_command
from qts.database import Database
from qts.domain import Secret
from qts.optimise.cluster import decode_context, encode_context
from qts.optimise.trial import TrialContext
from qts.pipeline import StrategyConfig
from tests.optimise.test_optimise_command import SEARCH, optimise, starts, workdir
from tests.optimise.test_trial import CROSS, tape

__all__ = ("tape", "workdir")  # fixtures


@contextmanager
def worker(url: Secret, *more: str, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "qts", "optimise", "worker", "--processes", "1"]
    words += ["--lease", "2", "--database", url.reveal(), *more]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=cwd) as process:
        try:
            yield process
        finally:
            process.kill()


async def on_cluster(url: Secret, *more: str) -> dict[str, Any]:
    """Run the search beside the loop of the test; its own loop is another."""
    return await asyncio.to_thread(optimise, "--cluster", url.reveal(), *more)


async def test_two_workers_give_the_study_of_one_process(
    database_url: Secret, database: Database
) -> None:
    bayes = ("--method", "bayes", "--seed", "7")
    alone = optimise(*bayes, "--study", "alone", "--processes", "1")
    with worker(database_url) as one, worker(database_url) as other:
        found = await on_cluster(database_url, *bayes, "--study", "cluster")
        said = []
        for each in (one, other):
            each.send_signal(signal.SIGINT)
            said.append(each.communicate(timeout=60)[0])
            assert each.returncode == 0
    assert found["digest"] == alone["digest"]
    assert found["trials"] == alone["trials"]
    ran = [int(text.rsplit("\n", 2)[-2].split()[0]) for text in said]
    assert sum(ran) == len({str(each["params"]) for each in found["trials"]}) + 1  # and the check
    assert await database.fetchval("SELECT count(*) FROM study") == 0


@pytest.mark.soak
async def test_a_killed_worker_costs_its_trial_only(workdir: Path, database_url: Secret) -> None:
    whole = optimise("--study", "whole", "--processes", "1")
    (workdir / "starts").unlink()
    fast = whole["trials"][3]["params"]["fast"]
    (workdir / f"parent-{fast}").touch()  # the parent of the process that runs it
    with worker(database_url) as first, worker(database_url) as second:
        again = await on_cluster(database_url, "--study", "again")
        for each in (first, second):
            each.send_signal(signal.SIGINT)
        codes = sorted(each.wait(60) for each in (first, second))
    assert codes == [-signal.SIGKILL, 0]
    assert again["digest"] == whole["digest"]
    valid = [each for each in whole["trials"] if not each["error"]]
    assert len(starts()) == len(valid) + 1 + 1  # the check out of sample, and the one that died


async def test_a_worker_with_another_file_does_not_take_the_study(
    workdir: Path, database_url: Secret
) -> None:
    elsewhere = workdir / "elsewhere"
    elsewhere.mkdir()
    source = (workdir / "cross.py").read_text()
    (elsewhere / "cross.py").write_text(source + "\n# edited\n")
    search = asyncio.create_task(on_cluster(database_url, "--study", "moved"))
    await asyncio.to_thread(_until_stored, database_url)
    (workdir / "cross.py").rename(workdir / "hidden.py")
    with worker(database_url, "--idle", "0", cwd=elsewhere) as wrong:
        said = wrong.communicate(timeout=60)[0]
    assert "not taken" in said
    assert "is another version; copy that of the study" in said
    (workdir / "hidden.py").rename(workdir / "cross.py")
    with worker(database_url):
        assert len((await search)["trials"]) == 8


def _until_stored(url: Secret) -> None:
    async def wait() -> None:
        from qts.database import DatabaseConfig

        async with Database.open(url, DatabaseConfig(pool_min=1, pool_max=1)) as database:
            while not await database.fetchval("SELECT count(*) FROM study_trial"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(wait(), 60))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("--cluster", "http://x"), "'http://x' is not the address of a cluster; expected"),
        (("--cluster", "postgresql://x/y", "--processes", "2"), "--processes is for this machine"),
    ],
)
def test_a_wrong_address_is_refused(
    capsys: pytest.CaptureFixture[str], more: tuple[str, ...], expected: str
) -> None:
    assert run_command(["optimise", *SEARCH, *more]) == 2
    assert expected in capsys.readouterr().err


def test_the_worker_has_a_help_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["optimise", "worker", "--help"]) == 0
    text = capsys.readouterr().out
    assert "qts optimise worker" in text
    assert "--lease" in text


def test_a_context_arrives_as_it_was(tape: Any) -> None:
    from qts.backtest import BacktestConfig, default_instruments

    instance = StrategyConfig(source=CROSS.source, name="one", parameters={"slow": 9})
    sent = TrialContext(instance, tape, BacktestConfig(use_stops=False), default_instruments(), 3)
    found = decode_context(encode_context(sent), "other.py:Cross")
    assert found.tape.digest == tape.digest
    assert json.dumps(found.tape.rows.tolist()) == json.dumps(tape.rows.tolist())
    assert (found.settings, found.seed) == (sent.settings, 3)
    assert found.strategy == StrategyConfig(
        source="other.py:Cross", name="one", parameters={"slow": 9}
    )
    assert found.instruments["005930"] == sent.instruments["005930"]
