"""`--no-skips`: a skipped test fails the run, so that nothing is left untested unnoticed.

`--allow-missing-browser` makes one exception, for a machine without Chromium: its browser tests
are left out, and the last line of the run counts them.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

# The reason of every skip that --allow-missing-browser allows begins with this.
NO_BROWSER = "no Chromium found"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="a skipped test fails the run")
    parser.addoption(
        "--allow-missing-browser",
        action="store_true",
        help="with --no-skips: browser tests may be left out where no Chromium is found",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Generator[None]:
    """Judge the skips and write the last lines, below pytest's own."""
    yield
    config = session.config
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not config.getoption("--no-skips"):
        return
    skipped = reporter.stats.get("skipped", [])
    browser = [report for report in skipped if _lacks_browser(report)]
    others = len(skipped) - len(browser)
    fatal = others > 0 or (browser and not config.getoption("--allow-missing-browser"))
    if fatal and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if others:
        reporter.write_line(f"{others} skipped, which --no-skips does not allow", red=True)
    if browser:
        noun = "test" if len(browser) == 1 else "tests"
        reporter.write_line(
            f"{len(browser)} browser {noun} left out: {NO_BROWSER}; install chromium to run them",
            red=bool(fatal),
            yellow=not fatal,
        )
    if not skipped:
        by_name = "" if "soak" in config.option.markexpr else "; soak tests run by name (-m soak)"
        reporter.write_line(f"No test was left out{by_name}")


def _lacks_browser(report: pytest.TestReport) -> bool:
    reason = report.longrepr[-1] if isinstance(report.longrepr, tuple | list) else ""
    return str(reason).startswith(f"Skipped: {NO_BROWSER}")
