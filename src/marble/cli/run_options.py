"""What the verbs that train, ask or show runs have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
FinishedRun = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of one finished run.")]
