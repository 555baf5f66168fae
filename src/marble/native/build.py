"""Compile the kernels of this folder into a shared library, with whatever C++ compiler the machine has.

For x86 there are two of the same sources: one for every processor of the last years, and a wide one with AVX-512.

Run at install by the build hook, and by hand as `python -m marble.native.build`. It uses the standard library only,
because at install time nothing else is there yet.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = ("ssd_prepare.cpp", "ssd_forward.cpp", "ssd_backward.cpp", "scan.cpp", "scan2d.cpp")
HEADERS = ("ahead.hpp", "simd.hpp", "ssd.hpp")
LIBRARY = FOLDER / "kernels.so"
WIDE_NAME = "kernels-avx512.so"
FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
)
# OpenMP, because torch's threads are OpenMP's: the kernels must run on those same threads. Others would have to share
# the processor with torch's, which spin for milliseconds after every product.
#: ways to ask for OpenMP, the best first; a compiler that knows none of them makes kernels of one thread
OPENMP: tuple[tuple[str, ...], ...] = (
    # Apple's compiler has the pragmas but neither header nor library; the functions are those of torch's libomp, which
    # is loaded before the kernels.
    (("-Xpreprocessor", "-fopenmp", "-undefined", "dynamic_lookup"), ())
    if sys.platform == "darwin"
    else (("-fopenmp",), ())
)
#: the instructions of every x86 processor since 2013; whoever loads the library checks for them
X86_FLAGS = ("-mavx2", "-mfma")
#: vectors of 64 bytes, and the instructions that torch looks for before it says AVX512
WIDE_FLAGS = (
    "-DMARBLE_VECTOR_BYTES=64",
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mprefer-vector-width=512",
)


def compiler() -> str | None:
    """$CXX, else the first usual name that exists."""
    named = os.environ.get("CXX")
    return next((path for name in (named, "c++", "g++", "clang++") if name and (path := shutil.which(name))), None)


def fingerprint() -> str:
    """Names the text of the kernels; a library of another text is not loaded."""
    text = b"\0".join((FOLDER / name).read_bytes() for name in (*SOURCES, *HEADERS))
    return hashlib.sha256(text).hexdigest()


def wheel_tag() -> str:
    """The kernels are loaded by ctypes: they depend on the platform, not on the version of Python."""
    return f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def is_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


def build() -> str | None:
    """Compile; None if that worked, else why not. A library that is there is only ever replaced as a whole.

    The wide one is an extra: a compiler that cannot make it has made kernels all the same.
    $CXXFLAGS come last, so that they can ask for another optimisation or for sanitizers.
    """
    cxx = compiler()
    if cxx is None:
        return "no C++ compiler found (c++, g++, clang++ or $CXX)"
    reason = _compile(cxx, X86_FLAGS if is_x86() else (), LIBRARY)
    if reason is None and is_x86():
        _compile(cxx, (*X86_FLAGS, *WIDE_FLAGS), LIBRARY.with_name(WIDE_NAME))
    return reason


def _compile(cxx: str, instructions: tuple[str, ...], library: Path) -> str | None:
    """Make one library, with OpenMP if the compiler has it."""
    named = f'-DMARBLE_FINGERPRINT="{fingerprint()}"'
    last = shlex.split(os.environ.get("CXXFLAGS", ""))
    reason = None
    for openmp in OPENMP:
        reason = _make(cxx, (*FLAGS, named, *instructions, *openmp, *last), library)
        if reason is None:
            break
    return reason


def _make(cxx: str, flags: tuple[str, ...], library: Path) -> str | None:
    scratch = library.with_suffix(f".{os.getpid()}.tmp")
    try:
        made = subprocess.run(
            [cxx, *flags, *(str(FOLDER / source) for source in SOURCES), "-o", str(scratch)],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            return f"{cxx} failed:\n{made.stderr[-2000:]}"
        scratch.replace(library)
    finally:
        scratch.unlink(missing_ok=True)
    return None


if __name__ == "__main__":
    sys.exit(build())
