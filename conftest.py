"""Options and markers shared by all tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from marble import storage

# Some virtual machines show AMX instructions and do not carry them out; what torch computes without them is the same.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# The same cases on every run: a suite that draws new ones fails at random. Slow tests search further, at random.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

ROOT = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden",
        default=str(ROOT / "tests" / "data" / "golden"),
        help="folder of golden cases, one sub-folder per system (default: the committed subset)",
    )
    parser.addoption("--data", help="folder of real slides, bags and tables; without it their tests are skipped")


@pytest.fixture(scope="session")
def shared_data(request: pytest.FixtureRequest) -> Path:
    """The folder of real slides, bags and tables, for tests that can use it; such tests are skipped without it."""
    given: str | None = request.config.getoption("--data")
    if given is None:
        pytest.skip("needs a folder of real data: --data FOLDER")
    folder = Path(given).resolve()
    if not folder.is_dir():
        raise pytest.UsageError(f"--data {given}: no such folder")
    return folder


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """fsspec's storage in memory, empty, and a machine whose cache is empty."""
    system = pytest.importorskip("fsspec").filesystem("memory")
    system.store.clear()
    monkeypatch.setenv(storage.CACHE, str(tmp_path / "here"))
    yield system
    system.store.clear()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The system's Chromium, one for all tests of a process; `MARBLE_CHROMIUM` names another."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = os.environ.get("MARBLE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium: install your system's package, or set MARBLE_CHROMIUM")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox", "--headless=new"])
        yield browser
        browser.close()
