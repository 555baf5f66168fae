"""The compiled kernels are used only when they are those of the sources at hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from marble.models.ssm.scan_native import NativeSelectiveScan
from marble.native import build, layout, library

native_scan: Callable[..., Tensor] = NativeSelectiveScan.apply


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """What is known about the library is found out anew, before and after."""
    for cached in (library.missing, library.has_wide, library._library):
        cached.cache_clear()
    yield
    for cached in (library.missing, library.has_wide, library._library):
        cached.cache_clear()


@pytest.mark.skipif(build.compiler() is None, reason="no compiler")
def test_building_leaves_a_library_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "kernels.so"
    monkeypatch.setattr(build, "LIBRARY", made)
    monkeypatch.setattr(library, "LIBRARY", made)
    assert build.build() is None
    names = ["kernels-avx512.so", "kernels.so"] if build.is_x86() else ["kernels.so"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert library.missing() is None
    assert library.has_wide() == ("AVX512" in torch.backends.cpu.get_cpu_capability())
    assert library.library_number("ssd_blocks", 32, 1) == 8


@pytest.mark.skipif(build.compiler() is None, reason="no compiler")
def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "fingerprint", lambda: "0" * 64)
    assert "other sources" in (library.missing() or "")


@pytest.mark.skipif(build.compiler() is None, reason="no compiler")
def test_wide_kernels_of_other_sources_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "fingerprint", lambda: "0" * 64)
    assert not library.has_wide()


@pytest.mark.skipif(library.missing() is not None, reason=f"native: {library.missing()}")
def test_narrow_kernels_are_not_taken_for_wide_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "WIDE_NAME", build.LIBRARY.name)
    assert not library.has_wide()


def test_a_compiler_that_makes_no_wide_kernels_has_made_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = 'case "$*" in *-mavx512f*) echo "unknown -mavx512f" >&2; exit 1;; esac'
    fake = fake_compiler(tmp_path, f'{refuses}\nfor last; do :; done\necho "$*" > "$last"')
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "kernels.so")
    monkeypatch.setenv("CXX", str(fake))
    assert build.build() is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c++", "kernels.so"]


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


def fake_compiler(folder: Path, body: str) -> Path:
    fake = folder / "c++"
    fake.write_text(f"#!/bin/sh\n{body}\n")
    fake.chmod(0o755)
    return fake


def test_a_compiler_without_openmp_makes_kernels_of_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "kernels.so"
    refuses = 'case "$*" in *-fopenmp*) echo "unknown -fopenmp" >&2; exit 1;; esac'
    fake = fake_compiler(tmp_path, f'{refuses}\nfor last; do :; done\necho "$*" > "$last"')
    monkeypatch.setattr(build, "LIBRARY", out)
    monkeypatch.setenv("CXX", str(fake))
    monkeypatch.setenv("CXXFLAGS", "-O1 -DTOLD='a b'")
    assert build.build() is None
    called = out.read_text().split()
    assert "-fopenmp" not in called
    assert called.index("-O1") > called.index("-O3")  # the user's flags come last


@pytest.mark.skipif(build.compiler() is None, reason="no compiler")
def test_kernels_of_one_thread_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(70, 8)
    inputs = (x, x.cos(), -torch.rand(8, 3), torch.rand(70, 3), torch.rand(70, 3))
    with_threads = native_scan(*inputs)
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "kernels.so")
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "kernels.so")
    monkeypatch.setattr(build, "OPENMP", ((),))
    monkeypatch.setenv("CXXFLAGS", f"{os.environ.get('CXXFLAGS', '')} -Wno-unknown-pragmas")
    assert build.build() is None
    library._library.cache_clear()
    assert torch.equal(native_scan(*inputs), with_threads)


@pytest.mark.skipif(library.missing() is not None, reason=f"native: {library.missing()}")
@pytest.mark.parametrize("name", sorted(layout.AGREED))
def test_a_library_with_another_layout_is_not_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layout.AGREED, name, layout.AGREED[name] + 8)
    assert f"{name} is {layout.AGREED[name] - 8} in the library" in (library.missing() or "")


@pytest.mark.skipif(library.missing() is not None, reason=f"native: {library.missing()}")
def test_every_function_says_what_it_takes() -> None:
    found = library._library(build.LIBRARY)
    for kernel, arguments in layout.KERNELS.items():
        for suffix in library.SUFFIX.values():
            assert len(getattr(found, f"marble_{kernel}_{suffix}").argtypes) == len(arguments) + 1


def test_the_wheel_is_for_any_python_of_this_platform() -> None:
    tag = build.wheel_tag()
    assert tag.startswith("py3-none-")
    assert "-" not in tag.removeprefix("py3-none-")


def test_a_failing_compiler_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_compiler(tmp_path, "echo 'no room' >&2\nexit 1")
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "kernels.so")
    monkeypatch.setenv("CXX", str(fake))
    assert "no room" in (build.build() or "")
    assert not (tmp_path / "kernels.so").exists()
