"""The compiled kernels are used only when they are those of the sources at hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from marble.native import build, library


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """What is known about the library is found out anew, before and after."""
    for cached in (library.missing, library._library):
        cached.cache_clear()
    yield
    for cached in (library.missing, library._library):
        cached.cache_clear()


@pytest.mark.skipif(build.compiler() is None, reason="no compiler")
def test_building_leaves_a_library_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "kernels.so"
    monkeypatch.setattr(build, "LIBRARY", made)
    monkeypatch.setattr(library, "LIBRARY", made)
    assert build.build() is None
    assert [path.name for path in tmp_path.iterdir()] == ["kernels.so"]
    assert library.missing() is None
    assert library.library_number("ssd_blocks", 32, 1) == 8


@pytest.mark.skipif(build.compiler() is None, reason="no compiler")
def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "fingerprint", lambda: "0" * 64)
    assert "other sources" in (library.missing() or "")


def test_a_file_that_is_no_library_is_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "kernels.so"
    wrong.write_bytes(b"not a library")
    monkeypatch.setattr(library, "LIBRARY", wrong)
    assert "does not load" in (library.missing() or "")
    assert "python -m marble.native.build" in (library.missing() or "")


def test_without_a_compiler_the_reason_is_given_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "kernels.so")
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "kernels.so")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert "no C++ compiler" in (build.build() or "")
    assert "compiler" in (library.missing() or "")


def test_a_failing_compiler_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "c++"
    fake.write_text("#!/bin/sh\necho 'no room' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "kernels.so")
    monkeypatch.setenv("CXX", str(fake))
    assert "no room" in (build.build() or "")
    assert not (tmp_path / "kernels.so").exists()
