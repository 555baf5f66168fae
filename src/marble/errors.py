"""Everything MARBLE raises on purpose.

    MarbleError                 anything below; the command line prints it without a traceback
    |-- InputError              what the user gave cannot be used as it is
    |   |-- SpecError           a setting: unknown key, wrong type, value out of range
    |   |-- SlideError          a slide: unreadable, no pixel size, magnification it does not have
    |   |-- BagError            a bag: shapes, parents, NaN, provenance
    |   |-- TableError          a cohort or label table: file, row, column
    |   |-- SplitError          a split: leaked patient, uncovered case
    |   `-- RunError            a run folder: incomplete, other architecture, other data
    |-- IntegrityError          bytes on disk are not the bytes that were recorded
    |-- NonFiniteError          NaN or infinity where a number must be
    |-- WriteError              a file or folder that cannot be written; also an OSError
    `-- UnavailableError        an optional package, a backend or a file that is not here

Every message says what is wrong, where (file, row, field), and what to do next.
"""

from __future__ import annotations


class MarbleError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: what is wrong, as a sentence without its full stop.
        where: the file, row or field it is wrong in.
        hint: the next step to take.
    """

    def __init__(self, what: str, *, where: object = None, hint: str | None = None) -> None:
        self.what = what
        self.where = None if where is None else str(where)
        self.hint = hint
        super().__init__(what, self.where, hint)

    def __str__(self) -> str:
        head = self.what if self.where is None else f"{self.where}: {self.what}"
        end = "" if head.endswith("?") else "."
        return head if self.hint is None else f"{head}{end} {self.hint}"

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive the default reduction, and errors travel between processes.
        return _rebuild, (type(self), self.what, self.where, self.hint)


def _rebuild(kind: type[MarbleError], what: str, where: str | None, hint: str | None) -> MarbleError:
    return kind(what, where=where, hint=hint)


class InputError(MarbleError):
    """What the user gave cannot be used as it is."""


class SpecError(InputError):
    """A setting has an unknown key, a wrong type or a value out of range."""


class SlideError(InputError):
    """A slide cannot be read, or not at the magnification asked for."""


class BagError(InputError):
    """A bag breaks its own rules."""


class TableError(InputError):
    """A table has a row or column that cannot be used."""


class SplitError(InputError):
    """A split leaks patients or does not cover the cohort."""


class RunError(InputError):
    """A run folder is incomplete or belongs to something else."""


class IntegrityError(MarbleError):
    """Bytes on disk are not the bytes that were recorded."""


class NonFiniteError(MarbleError):
    """NaN or infinity where a number must be."""


class WriteError(MarbleError, OSError):
    """A file or folder cannot be written: full, read-only, not ours. `errno` is the system's."""

    def __init__(self, what: str, *, where: object = None, hint: str | None = None, errno: int | None = None) -> None:
        super().__init__(what, where=where, hint=hint)
        self.errno = errno


class ShortOfMemoryError(MarbleError, MemoryError):
    """The machine or the device has less memory than the work needs."""


class UnavailableError(MarbleError):
    """An optional package, a backend or a file is not here."""
