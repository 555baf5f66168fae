"""The command line as a user meets it: exit code and output; anything but an error of ours is a traceback."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from typer.testing import CliRunner

from marble.cli import assemble
from marble.errors import MarbleError


@dataclass(frozen=True)
class Ended:
    code: int
    output: str  # of both streams

    @property
    def failed(self) -> list[str]:
        """What was listed as failed, in its order."""
        return [line.removeprefix("failed: ") for line in self.output.splitlines() if line.startswith("failed: ")]


def marble(*arguments: object) -> Ended:
    """Run a verb in this process."""
    result = CliRunner().invoke(assemble(), [str(argument) for argument in arguments])
    error = result.exception
    if isinstance(error, MarbleError):  # as `marble.cli.main` shows it
        return Ended(2, f"{result.output}error: {error}\n")
    if error is not None and not isinstance(error, SystemExit):
        raise AssertionError("".join(traceback.format_exception(error)) + result.output)
    return Ended(result.exit_code, result.output)
