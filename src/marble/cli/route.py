"""`marble route`: find out how few fine tiles a trained run needs to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli import paths, terminal
from marble.cli.run_options import FinishedRun
from marble.errors import InputError


def route(
    run_folder: FinishedRun,
    bags: Annotated[Path, typer.Option(metavar="STORE", help="The bags it was trained on.")],
    tolerance: Annotated[float, typer.Option(help="How much AUC, C-index or R2 on validation may be lost.")] = 0.01,
    budgets: Annotated[str | None, typer.Option(help="Shares of fine tiles to try, comma-separated.")] = None,
) -> None:
    """Learn where the run looks, and seal into it the smallest share of fine tiles that is enough."""
    paths.run_folder(run_folder)
    paths.output_folder(run_folder, "run")  # what is learned is sealed into it
    paths.existing_folder(bags, "store of bags")
    from marble.bags.store import BagStore
    from marble.training.routing import BUDGETS, RECORD, calibrate
    from marble.training.run_folder import RunFolder

    try:
        tried = BUDGETS if budgets is None else tuple(float(part) for part in budgets.split(","))
    except ValueError:
        raise InputError(
            f"'{budgets}' is not a list of shares", where="--budgets", hint="For example 0.1,0.25"
        ) from None
    run = RunFolder.open(run_folder)
    record = calibrate(run, BagStore.find(bags, like=run.provenance), tolerance, tried)
    rows = [(f"{p['budget']:g}", f"{p['share']:.3f}", f"{p['metric']:.4f}") for p in record["curve"]]
    terminal.table(f"{record['cases']} validation cases", ["budget", "fine tiles used", record["metric"]], rows)
    if "caution" in record:
        typer.secho(f"caution: {record['caution']}", err=True, fg=typer.colors.YELLOW)
    typer.echo(f"budget {record['budget']:g} (tolerance {tolerance:g}) is sealed in {run_folder / RECORD}")
