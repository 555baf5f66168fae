"""Case numbers with a slash, as 1203/21: patients like others, not files of one name in many folders."""

from __future__ import annotations

from pathlib import Path

from marble.cohorts import Cohort, audit, holdout, read_cohort, write_splits
from marble.cohorts.split_files import read_splits
from marble.identifiers import listed_id, spelling_key


def _cohort(folder: Path) -> Cohort:
    table = folder / "cohort.csv"
    rows = [f"{1200 + k}/{20 + k % 2},slide-{k},{'ab'[k % 3 == 0]}\n" for k in range(20)]
    table.write_text("case_id,slide_id,label\n" + "".join(rows))
    return read_cohort(table)


def test_a_slash_does_not_make_one_patient_of_many() -> None:
    assert spelling_key("1203/21") != spelling_key("1507/21")
    assert spelling_key("b1203/21") == spelling_key("B1203/21 ")
    assert listed_id(" 1203/21") == "1203/21"
    assert listed_id("slides/a.svs") == "a"


def test_they_are_read_split_and_audited_as_what_they_are(tmp_path: Path) -> None:
    cohort = _cohort(tmp_path)
    assert len(cohort.cases) == 20
    splits = holdout(cohort, repeats=2)
    folder = write_splits(splits, tmp_path / "splits", cohort)[0].parent
    assert [split.test for split in read_splits(folder, cohort)] == [split.test for split in splits]
    for known in (cohort, None):
        found = audit(folder, known)
        assert not found.leaks
        assert not found.faults
