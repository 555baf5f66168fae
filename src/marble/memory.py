"""Too little memory, told as what it is: Python, the system and torch each have an error of their own for it."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from marble.errors import ShortOfMemoryError

_ASKED = re.compile(r"tried to allocate ([0-9.]+) ?(bytes|KiB|MiB|GiB)", re.IGNORECASE)
_GIB = {"bytes": 2**-30, "kib": 2**-20, "mib": 2**-10, "gib": 1.0}


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
