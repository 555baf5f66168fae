"""`split`, `run`, `report`, `predict`: from a cohort table to results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from marble.cli import show

Workers = Annotated[int, typer.Option(help="Processes that work side by side.", min=1)]


def register(app: typer.Typer) -> None:
    for verb in (split, run, report, predict):
        app.command()(verb)


def split(
    cohort: Annotated[Path | None, typer.Argument(help="Cohort table (CSV, TSV).")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the split files.")] = None,
    check: Annotated[
        Path | None, typer.Option(help="Audit this split file or folder instead of making splits.")
    ] = None,
    scheme: Annotated[str, typer.Option(help="holdout (80/10/10) or kfold (nested).")] = "holdout",
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    folds: Annotated[int, typer.Option(min=3)] = 5,
    seed: int = 0,
    by_site: Annotated[bool, typer.Option(help="Keep every hospital in one part.")] = False,
    task: Annotated[str | None, typer.Option(help="classification or survival, where the table has both.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the class.")] = None,
    event_coding: Annotated[
        str | None, typer.Option(help="1=event or 1=censored, where the format does not say.")
    ] = None,
    scored_by: Annotated[str, typer.Option(help="case; or slide, if slides of one patient differ in target.")] = "case",
) -> None:
    """Divide patients into train, validation and test; or audit somebody's split file with --check."""
    from marble.cohorts import audit, holdout, kfold, read_cohort, write_splits
    from marble.errors import InputError
    from marble.specs import unknown_choice

    options: dict[str, Any] = {"task": task, "label": label, "event_coding": event_coding, "scored_by": scored_by}
    found = None if cohort is None else read_cohort(cohort, **options)
    if check is not None:
        result = audit(check, found)
        for line in result.lines():
            typer.echo(line)
        raise typer.Exit(1 if result.leaks else 0)
    if found is None or out is None:
        raise InputError("give a cohort table and --out, or --check FILE", hint="See `marble split --help`")
    typer.echo(found.summary())
    if scheme == "holdout":
        splits = holdout(found, repeats=repeats, seed=seed, by_site=by_site)
    elif scheme == "kfold":
        splits = kfold(found, folds=folds, repeats=repeats, seed=seed, by_site=by_site)
    else:
        raise InputError(unknown_choice("scheme", scheme, ["holdout", "kfold"]))
    for path in write_splits(splits, out, found):
        typer.echo(f"wrote {path}")


def run(
    experiment: Annotated[Path, typer.Argument(help="Experiment file (TOML).")],
    out: Annotated[Path, typer.Option(help="Folder for runs and the report.")] = Path("runs"),
    workers: Workers = 1,
    threads: Annotated[int, typer.Option(help="BLAS threads of each worker; part of the result.", min=1)] = 1,
    allow_drift: Annotated[bool, typer.Option(help="Resume runs that another version started; stamped.")] = False,
) -> None:
    """Train and evaluate every model on every split, then write the report. Start it again to go on."""
    from marble.compute import Executor, Inline, Processes
    from marble.experiment import Experiment
    from marble.training.live import follow
    from marble.training.protocol import run_all

    loaded = Experiment.load(experiment)
    planned = loaded.plan(out, threads=threads, allow_drift=allow_drift)
    typer.echo(loaded.cohort(out).summary())
    executor: Executor = Inline() if workers == 1 else Processes(workers, threads_per_worker=threads)
    with follow(loaded.name, planned, workers, show.console) as tell:
        outcomes = run_all(planned, executor, tell)
    if any(outcome.ok for outcome in outcomes):
        _write_report(out / loaded.name, out / loaded.name / "report")
    show.failures([(o.planned.folder, str(o.reason)) for o in outcomes if not o.ok])


def report(
    runs: Annotated[Path, typer.Argument(help="Folder of finished runs.")],
    out: Annotated[Path, typer.Option(help="Folder for tables, figures and index.html.")] = Path("report"),
) -> None:
    """Tables, figures and a page from the stored predictions alone."""
    _write_report(runs, out)


def predict(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of one finished run.")],
    sources: Annotated[list[Path], typer.Argument(help="Slides, bags or stores.")],
    out: Annotated[Path | None, typer.Option(help="Write the rows to this CSV file.")] = None,
) -> None:
    """Ask a trained model about slides or bags: one row each."""
    from marble import files
    from marble.compute import describe
    from marble.prediction import Predictor, bags_of
    from marble.reports.tables import rows_csv

    predictor = Predictor(run_folder)
    rows: list[dict[str, Any]] = []
    failed: list[tuple[str, str]] = []
    for name, bag in bags_of(sources, predictor.run):
        try:
            if isinstance(bag, Exception):
                raise bag
            rows.append(predictor.answer(bag).row())
        except Exception as error:  # the other sources are still answered
            failed.append((name, describe(error)))
    if rows:
        show.table(f"Predictions of {run_folder}", list(rows[0]), [list(row.values()) for row in rows])
    if out is not None and rows:
        typer.echo(f"wrote {files.publish(out, rows_csv(rows))}")
    show.failures(failed)


def _write_report(runs: Path, out: Path) -> None:
    from marble.reports import write_report
    from marble.training.live import say

    page = write_report(runs, out)
    say((out / "table.md").read_text())
    say(f"report: {page}")
