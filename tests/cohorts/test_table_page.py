"""The pages for newcomers say what is true: every spelling they name is read, and every one that is read is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from marble import cli
from marble.cohorts import families, fields
from marble.cohorts.tables import read_cohort
from marble.experiment.spec import CohortSpec
from marble.identifiers import slide_id_of
from marble.models import MODELS
from marble.tabular import column_key
from marble.targets import SurvivalTime

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
PAGE = (DOCS / "your-cohort-table.md").read_text(encoding="utf-8")
COMING = (DOCS / "coming-from.md").read_text(encoding="utf-8")


def row(start: str) -> list[list[str]]:
    """The code words in each cell of the table row that begins so."""
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| {start} |"))
    return [re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:-1]]


def options(verb: str) -> set[str]:
    return {flag for parameter in get_command(cli.assemble()).commands[verb].params for flag in parameter.opts}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("what", "known"),
    [
        ("patient", families.CASE_COLUMNS), ("slide", families.SLIDE_COLUMNS),
        ("site (hospital)", families.SITE_COLUMNS), ("class", families.LABEL_COLUMNS),
        ("number", families.TARGET_COLUMNS),
        ("time and event", tuple(name for pair in families.SURVIVAL_PAIRS for name in pair)),
    ],
)  # fmt: skip
def test_the_names_of_columns_are_those_of_the_reader(what: str, known: tuple[str, ...]) -> None:
    named = [name for name in row(what)[1] if not name.startswith("X")]
    assert tuple(named) == known
    assert len({column_key(name) for name in known}) >= len(known) - (2 if what.startswith("time") else 0)


@pytest.mark.parametrize("column", row("patient")[1])
def test_every_patient_column_is_read(tmp_path: Path, column: str) -> None:
    for name in (column, column.upper(), column.replace("_", " ").title()):
        path = tmp_path / "cohort.csv"
        path.write_text(f"{name},slide_id,label\np,s,a\np,t,a\nq,u,b\n")
        assert [case.slides for case in read_cohort(path).cases] == [("s", "t"), ("u",)]


@pytest.mark.parametrize(("time", "event"), [*families.SURVIVAL_PAIRS, ("PFS_days", "PFS_event")])
def test_every_survival_pair_is_read(tmp_path: Path, time: str, event: str) -> None:
    path = tmp_path / "cohort.csv"
    path.write_text(f"case_id,slide_id,{time.upper()},{event.upper()}\np,s,5,dead\nq,t,6,alive\n")
    assert read_cohort(path).case("p").target == SurvivalTime(5, True)


def test_the_words_of_missing_values_are_those_of_the_reader() -> None:
    words = [word for start in ("blanks and marks", "words", "of spreadsheets") for word in row(start)[1]]
    assert {fields.missing_key(word) for word in words} | {""} == fields.MISSING
    assert all(fields.is_missing(f"[{word}]") and fields.is_missing(word.upper()) for word in words)


def test_the_words_of_events_are_those_of_the_reader() -> None:
    line = next(line for line in PAGE.splitlines() if line.startswith("| `dead`"))
    dead, alive = (re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:-1])
    assert {**dict.fromkeys(dead, True), **dict.fromkeys(alive, False)} == fields.EVENT_WORDS
    paragraph = PAGE[PAGE.index("An event is") : PAGE.index("| event | censored |")]
    flags = {word.lower() for word in re.findall(r"`([^`]+)`", paragraph)}
    assert flags == set(fields.EVENT_FLAGS)


def test_flags_and_keys_of_the_table_page_exist() -> None:
    flags = set(re.findall(r"--[a-z][a-z-]+", PAGE))
    assert len(flags) >= 14
    assert flags <= options("split")
    keys = set(re.findall(r"`([a-z_]+)(?: = [^`]+)?`\)", PAGE)) - {"task"}
    assert keys <= set(CohortSpec.model_fields)
    assert set(CohortSpec.model_fields) - {"path", "patients"} <= {
        flag.removeprefix("--").replace("-", "_") for flag in flags
    }


def test_endings_of_the_table_page_are_taken_off() -> None:
    paragraph = PAGE[PAGE.index("**Slide.**") : PAGE.index("**Ids are text.**")]
    for ending in re.findall(r"`(\.[a-z0-9]+)`", paragraph):
        assert slide_id_of(f"a{ending}") == "a"


def test_commands_flags_and_models_of_the_newcomers_page_exist() -> None:
    commands = re.findall(r"marble ((?:import-checkpoint|[a-z]+) [^`\n]*)", COMING)
    assert len(commands) >= 14
    for command in commands:
        verb = command.split()[0]
        assert set(re.findall(r"(--[a-z][a-z-]*)", command)) <= options(verb), command
    for name in ("abmil", "clam-sb", "transmil"):
        assert f"`{name}`" in COMING
        assert name in MODELS
