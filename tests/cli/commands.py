"""Running `marble` as a user does, in this process or in one of its own."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from marble.cli import VERBS, main


@dataclass(frozen=True)
class Ended:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str


def marble(*arguments: object) -> Ended:
    """`marble ARGUMENTS` through its entry point."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = int(end.code or 0)
    return Ended(code, out.getvalue(), err.getvalue())


LOADED = """
import json, sys
from tests.cli.commands import marble
ended = [vars(marble(*words)) for words in json.loads(sys.argv[1])]
print(json.dumps({"ended": ended, "modules": sorted(sys.modules)}))
"""


def loaded_by(commands: Sequence[Sequence[str]]) -> tuple[list[Ended], set[str]]:
    """How these commands end, one after the other in a fresh process, and all the modules it has imported then."""
    command = [sys.executable, "-c", LOADED, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    said = json.loads(done.stdout)
    return [Ended(**one) for one in said["ended"]], set(said["modules"])


#: for every verb: what it takes, with {path} for what it reads and {out} for what it writes; None where it has none
TAKES: dict[str, tuple[str, ...]] = {
    "demo": ("--out", "{out}"),
    "doctor": ("--sbom", "{out}"),
    "tile": ("{path}", "--out", "{out}", "--magnifications", "5,20"),
    "plan": ("{path}", "--magnifications", "5,20", "--encoder", "colour"),
    "extract": ("{path}", "--store", "{out}", "--magnifications", "5,20", "--encoder", "colour"),
    "import": ("--level", "10:{path}", "--store", "{out}"),
    "import-checkpoint": ("{path}", "--model", "abmil", "--out", "{out}"),
    "export": ("{path}", "--out", "{out}"),
    "verify": ("{path}",),
    "split": ("{path}", "--out", "{out}"),
    "run": ("{path}", "--out", "{out}"),
    "report": ("{path}", "--out", "{out}"),
    "route": ("{path}", "--bags", "{path}"),
    "predict": ("{path}", "{path}", "--out", "{out}"),
    "heatmap": ("{path}", "{path}", "--out", "{out}"),
    "view": ("{path}",),
    "bench": ("extract", "--slide", "{path}", "--json", "{out}"),
}
assert set(TAKES) == set(VERBS)


def arguments(verb: str, path: Path, out: Path) -> list[str]:
    """The verb with its arguments filled in."""
    return [verb, *(word.format(path=path, out=out) for word in TAKES[verb])]


READS = [verb for verb, words in TAKES.items() if any("{path}" in word for word in words)]
WRITES = [verb for verb, words in TAKES.items() if any("{out}" in word for word in words)]
