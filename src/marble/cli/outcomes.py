"""How a command ends: one line for whatever went wrong, and the exit code that goes with it.

    0    done
    1    done, but some items failed or some faults were found; each is listed
    2    what was given cannot be used as it is: an argument, a file, a folder, a full disk
    3    a bug in MARBLE
    130  stopped by Ctrl-C; 143: by a signal that asks to end

`MARBLE_DEBUG=1` adds the traceback to the line. Nothing else ever prints one.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from marble import storage
from marble.errors import MarbleError
from marble.memory import is_out_of_memory

OK, SOME_FAILED, UNUSABLE, BUG, STOPPED, ENDED = 0, 1, 2, 3, 130, 143
DEBUG = "MARBLE_DEBUG"

#: what the system's refusals mean here, and the step to take next
_REFUSALS = {
    errno.ENOSPC: ("no space left on this disk", "Make room or choose another folder, then start it again to go on"),
    errno.EDQUOT: ("your quota on this disk is used up", "Make room or choose another folder, then start it again"),
    errno.EACCES: ("permission denied", "Change the permissions, or choose a folder that you may use"),
    errno.EPERM: ("permission denied", "Change the permissions, or choose a folder that you may use"),
    errno.EROFS: ("this disk is read-only", "Choose another folder"),
    errno.ENOTDIR: ("a part of this path is a file, not a folder", "Choose another folder"),
    errno.EEXIST: ("there is a file of this name where a folder is needed", "Choose another folder"),
    errno.EISDIR: ("this is a folder, and a file is needed", "Give the path of a file"),
    errno.ENOENT: ("no such file or folder", "Check the path"),
    errno.ENAMETOOLONG: ("this name is too long for this disk", "Choose a shorter one"),
    errno.EMFILE: ("too many open files", "Raise the limit with `ulimit -n 4096`"),
    errno.EIO: ("this disk cannot read or write it", "Check the disk or the connection to it"),
}


class Stopped(Exception):  # noqa: N818  asked for, not an error
    """Ctrl-C, or a signal that asks to end, with a sentence on what is kept."""

    def __init__(self, kept: str = "", code: int = STOPPED) -> None:
        super().__init__(kept)
        self.kept, self.code = kept, code


class Terminated(KeyboardInterrupt):
    """SIGTERM takes the way of Ctrl-C, so that workers are stopped and nothing is left half written."""


#: verbs that write at their end: what they had done is not taken up by the same command
BEGIN_ANEW = frozenset({"predict", "heatmap", "report"})


def outcome_of(error: BaseException, verb: str | None = None) -> tuple[str, int]:
    """One line for the user, and the exit code."""
    if isinstance(error, MarbleError):
        return f"error: {storage.shown(_one_line(error))}", UNUSABLE
    if isinstance(error, Stopped):
        kept = f"; {error.kept}" if error.kept else ""
        rest = "the same command begins anew" if verb in BEGIN_ANEW else "start the same command again to go on"
        return f"stopped{kept}; {rest}", error.code
    if is_usage(error):
        return _usage(error), UNUSABLE
    if is_out_of_memory(error):
        return "error: not enough memory. Use fewer workers or smaller sizes, or close other programs", UNUSABLE
    if isinstance(error, OSError) and error.errno in _REFUSALS:
        return f"error: {_refusal(error)}", UNUSABLE
    kind = type(error).__name__
    hint = f"Please report it, with what {DEBUG}=1 in front of the same command prints"
    return f"this is a bug in MARBLE: {kind}: {_one_line(error) or 'no message'}. {hint}", BUG


def wants_traceback() -> bool:
    return os.environ.get(DEBUG, "") not in ("", "0")


def is_usage(error: BaseException) -> bool:
    """Whether the parser of the command line refused an argument; its classes are private to typer."""
    return isinstance(error, Exception) and hasattr(error, "format_message") and hasattr(error, "exit_code")


def _usage(error: Any) -> str:
    text = " ".join(str(error.format_message()).split()).rstrip(".")
    text += "" if text.endswith(("?", "!")) else "."
    context = getattr(error, "ctx", None)
    return f"error: {text} See `{'marble' if context is None else context.command_path} --help`"


def _refusal(error: OSError) -> str:
    """`publish` says what it could not write; everything else says which file."""
    what, hint = _REFUSALS[error.errno or 0]
    said = str(error.strerror or "")
    if said.startswith("cannot write "):
        return f"{said}. {hint}"
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return f"{names[0] + ': ' if names else ''}{what}. {hint}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
