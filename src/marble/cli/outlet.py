"""Where a verb's words go: neither a reader who has gone nor an old encoding may end the work they are about."""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer


def outlast_the_reader() -> None:
    """`marble extract ... | head` goes on to its end, and its exit code says how that was.

    A letter that the terminal's encoding lacks, as in a Latin-1 locale, is written as its number.
    """
    sys.stdout, sys.stderr = lasting(sys.stdout), lasting(sys.stderr)


def lasting(stream: TextIO) -> TextIO:
    """The same stream, to which everything can be written; one that is not the process's own is left as it is."""
    if stream not in (sys.__stdout__, sys.__stderr__) or not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.reconfigure(errors="backslashreplace")
    raw = getattr(stream.buffer, "raw", stream.buffer)  # unbuffered by PYTHONUNBUFFERED
    if not isinstance(raw, io.FileIO) or stream.isatty():
        return stream
    stream.flush()
    buffer = io.BufferedWriter(_Unread(raw.fileno(), "wb", closefd=False))
    return io.TextIOWrapper(
        buffer, stream.encoding, stream.errors, line_buffering=stream.line_buffering, write_through=stream.write_through
    )


class _Unread(io.FileIO):
    """A file or pipe that takes everything, also when nobody is left at its other end."""

    def write(self, data: Buffer, /) -> int:
        with suppress(BrokenPipeError):
            return super().write(data)
        return memoryview(data).nbytes
