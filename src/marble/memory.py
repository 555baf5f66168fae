"""The process's memory: too little of it told as what it is, and what is freed kept for the next tensor."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from marble.errors import ShortOfMemoryError

_ASKED = re.compile(r"tried to allocate ([0-9.]+) ?(bytes|KiB|MiB|GiB)", re.IGNORECASE)
_GIB = {"bytes": 2**-30, "kib": 2**-20, "mib": 2**-10, "gib": 1.0}
#: what mallopt(3) calls M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 1 << 30


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was asked for in vain."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError) and (
        type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    )


@contextmanager
def told_if_short(what: str, where: object) -> Iterator[None]:
    """Errors for want of memory become one that says what it was wanted for and, where known, how much at once."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error) or isinstance(error, ShortOfMemoryError):
            raise
        asked = _ASKED.search(str(error))
        much = "more" if asked is None else f"{float(asked[1]) * _GIB[asked[2].lower()]:.2g} GiB more at once"
        said = f"not enough memory for {what}: it needs {much}"
        raise ShortOfMemoryError(said, where=where, hint="Use a machine with more, or a smaller model") from None


def keep_freed() -> bool:
    """Let freed tensors of up to a GiB each, together about a GiB, stay with this process; whether that was possible.

    The C library of Linux gives every tensor above 32 MiB back at once, and the next one of that size is new, empty
    pages, which the system clears and maps one by one: 40 % of a training step of MambaMIL on 16,384 tokens.
    What the user set by environment variables (`MALLOC_...`) stays.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not in every C library
    return mallopt is not None and all(mallopt(which, KEPT_BYTES) for which in (_TRIM_THRESHOLD, _MMAP_THRESHOLD))
