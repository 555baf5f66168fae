"""`marble split`: patients into parts, or an audit of somebody's split."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marble.cli import paths
from marble.cli.companions import goes_with, goes_without
from marble.cli.pseudonym_options import read

if TYPE_CHECKING:
    from marble.cohorts import Cohort, Split

_COLUMNS = "Columns of the table, where their names are not known"
_ROWS = "Rows of the table"


def split(
    cohort: Annotated[Path | None, typer.Argument(help="Cohort table (CSV, TSV).")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the split files.")] = None,
    check: Annotated[
        Path | None, typer.Option(help="Audit this split file or folder instead of making splits.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="Bags, which tell one file or the same tissue under two names.")
    ] = None,
    scheme: Annotated[str | None, typer.Option(help="holdout (80/10/10, the default) or kfold (nested).")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="5 for holdout, 1 for kfold if not given.")] = None,
    folds: Annotated[int | None, typer.Option(min=3, help="Folds of kfold, which it implies; default 5.")] = None,
    seed: int = 0,
    by_site: Annotated[bool, typer.Option("--by-site", help="Keep every hospital in one part.")] = False,
    task: Annotated[str | None, typer.Option(help="classification, survival or regression.")] = None,
    case: Annotated[str | None, typer.Option(help="Column of the patient.", rich_help_panel=_COLUMNS)] = None,
    slide: Annotated[str | None, typer.Option(help="Column of the slide.", rich_help_panel=_COLUMNS)] = None,
    pseudonyms: Annotated[
        Path | None,
        typer.Option(
            metavar="MAP.csv",
            help="The table calls slides by their files; they are known by the ids of this one.",
            rich_help_panel=_COLUMNS,
        ),
    ] = None,
    site: Annotated[str | None, typer.Option(help="Column of the hospital.", rich_help_panel=_COLUMNS)] = None,
    label: Annotated[str | None, typer.Option(help="Column of the class.", rich_help_panel=_COLUMNS)] = None,
    target: Annotated[str | None, typer.Option(help="Column of the number.", rich_help_panel=_COLUMNS)] = None,
    time: Annotated[str | None, typer.Option(help="Column of the follow-up time.", rich_help_panel=_COLUMNS)] = None,
    event: Annotated[str | None, typer.Option(help="Column of the event.", rich_help_panel=_COLUMNS)] = None,
    event_coding: Annotated[
        str | None,
        typer.Option(help="1=event or 1=censored, where the format does not say.", rich_help_panel=_COLUMNS),
    ] = None,
    slide_table: Annotated[
        Path | None,
        typer.Option(help="Second table, of patient and slide, if the first has no slides.", rich_help_panel=_COLUMNS),
    ] = None,
    case_is_slide: Annotated[
        bool,
        typer.Option("--case-is-slide", help="There are no patients: every slide is one.", rich_help_panel=_ROWS),
    ] = False,
    scored_by: Annotated[
        str,
        typer.Option(help="case; or slide, if slides of one patient differ in target.", rich_help_panel=_ROWS),
    ] = "case",
    classes: Annotated[
        str | None, typer.Option(help='The classes, in order: benign,"tumour, G1".', rich_help_panel=_ROWS)
    ] = None,
    keep_as_class: Annotated[
        list[str] | None,
        typer.Option(help="A word such as None or unknown that is a class; may be repeated.", rich_help_panel=_ROWS),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            help="Leave out rows without a target (missing) or of other classes (other); may be repeated.",
            rich_help_panel=_ROWS,
        ),
    ] = None,
) -> None:
    """Divide patients into train, validation and test; or audit somebody's split file with --check."""
    if cohort is not None:
        paths.existing_file(cohort, "table")
    read(pseudonyms)
    if check is not None:
        making = {"--out": out is not None, "--scheme": scheme is not None, "--repeats": repeats is not None}
        goes_without("--check", making | {"--folds": folds is not None, "--seed": seed != 0, "--by-site": by_site})
        if cohort is None:
            _refuse_unread(
                task=task, case=case, slide=slide, pseudonyms=pseudonyms, site=site, label=label, target=target,
                time=time, event=event, event_coding=event_coding, slide_table=slide_table, classes=classes,
                scored_by=None if scored_by == "case" else scored_by, keep_as_class=keep_as_class, drop=drop,
            )  # fmt: skip
    _existing(check, store)
    if out is not None:
        paths.output_folder(out)
    from marble.cohorts import audit, holdout, kfold, read_cohort, site_report, write_splits
    from marble.errors import InputError
    from marble.specs import unknown_choice

    options: dict[str, Any] = {
        "task": task, "case": case, "slide": slide, "pseudonyms": pseudonyms, "site": site,
        "label": label, "target": target, "time": time,
        "event": event, "event_coding": event_coding, "slide_table": slide_table, "case_is_slide": case_is_slide,
        "scored_by": scored_by, "classes": None if classes is None else _names(classes),
        "keep_as_class": tuple(keep_as_class or ()), "drop": tuple(drop or ()),
    }  # fmt: skip
    found = None if cohort is None else read_cohort(cohort, **options)
    if check is not None:
        result = audit(check, found, case_is_slide=case_is_slide, **_shared(store))
        for line in result.lines():
            typer.echo(line)
        raise typer.Exit(1 if result.leaks or result.faults else 0)
    if found is None or out is None:
        raise InputError("give a cohort table and --out, or --check FILE", hint="See `marble split --help`")
    chosen = scheme or ("holdout" if folds is None else "kfold")
    if chosen not in ("holdout", "kfold"):
        raise InputError(unknown_choice("scheme", chosen, ["holdout", "kfold"]))
    if chosen == "holdout" and folds is not None:
        raise InputError("--folds belongs to kfold, not to holdout", hint="Leave out one of --scheme and --folds")
    typer.echo(found.summary())
    if chosen == "holdout":
        splits = holdout(found, repeats=repeats or 5, seed=seed, by_site=by_site)
    else:
        splits = kfold(found, folds=folds or 5, repeats=repeats or 1, seed=seed, by_site=by_site)
    _refuse_shared(splits, found, store)
    typer.echo("\n".join([f"first split: {site_report(found, splits[0]).line()}", *_again(splits, by_site)]))
    for path in write_splits(splits, out, found):
        typer.echo(f"wrote {path}")


def _again(splits: Sequence[Split], by_site: bool) -> list[str]:
    """A line for splits that divide the patients as earlier ones do, as a few hospitals can only be in a few ways."""
    from marble.cohorts.again import drawn_again

    again = drawn_again([dict(one.parts()) for one in splits])
    hint = "Ask for fewer with --repeats" if by_site else "Give another --seed"
    said = f"note: {len(again)} of {len(splits)} splits divide the patients as earlier ones do. {hint}"
    return [said] if again else []


def _names(listed: str) -> tuple[str, ...]:
    """Names with commas between; one that has a comma itself is put in double quotes, as in the table."""
    return tuple(name.strip() for row in csv.reader([listed], skipinitialspace=True) for name in row)


def _refuse_unread(**choices: object) -> None:
    """What is said about a cohort table is refused where none is given."""
    goes_with("a cohort table", {f"--{name.replace('_', '-')}": bool(value) for name, value in choices.items()})


def _existing(check: Path | None, store: Path | None) -> None:
    if check is not None:
        paths.existing(check)
    if store is not None:
        paths.existing_folder(store, "store of bags")


def _refuse_shared(splits: Sequence[Split], cohort: Cohort, store: Path | None) -> None:
    if store is not None:
        from marble.cohorts import audit
        from marble.experiment.leaks import refuse

        refuse(audit(splits, cohort, **_shared(store)))


def _shared(store: Path | None) -> dict[str, Any]:
    """What the audit is told of the bags: which slides are one file, and which show the same tissue."""
    if store is None:
        return {}
    from marble.bags.store import BagStore
    from marble.experiment.leaks import alike_in, contents_of

    bags = BagStore.find(store)
    slides = [record.slide_id for record in bags.records() if record.status == "ok"]
    return {"contents": contents_of(bags), "alike": alike_in(bags, slides)}
