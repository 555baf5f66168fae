"""The audit of split files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.cohorts import Case, Cohort, Split, audit, holdout

COHORT = Cohort(
    "made",
    "classification",
    tuple(Case(f"p{i:02}", (f"s{i}a", f"s{i}b"), "ab"[i % 2], "xyz"[i % 3]) for i in range(30)),
    ("a", "b"),
)


def write(folder: Path, train: list[str], val: list[str], test: list[str]) -> Path:
    path = folder / "splits_0.csv"
    height = max(map(len, (train, val, test)))
    rows = [[column[i] if i < len(column) else "" for column in (train, val, test)] for i in range(height)]
    path.write_text(",train,val,test\n" + "".join(f"{i},{','.join(row)}\n" for i, row in enumerate(rows)))
    return path


def test_our_own_splits_pass(tmp_path: Path) -> None:
    result = audit(holdout(COHORT), COHORT)
    assert not result.leaks
    assert not result.faults
    text = "\n".join(result.lines())
    assert "ok: no patient is in two parts" in text
    assert "3 names, 3 patients; a " in text
    assert "splits: 5, with leaked patients: 0, with other faults: 0" in text
    assert not audit(holdout(COHORT)[0]).leaks


@pytest.mark.parametrize(
    ("one", "other", "patient"),
    [
        ("TCGA-AA-1234", "TCGA-AA-1234", "TCGA-AA-1234"),
        ("TCGA-AA-1234", "tcga-aa-1234 ", "TCGA-AA-1234"),
        ("TCGA-AA-1234-01Z-00-DX1.AB", "TCGA-AA-1234-01Z-00-DX2.CD", "TCGA-AA-1234"),
        ("TCGA-AA-1234-01Z-00-DX1.AB.svs", "TCGA-AA-1234", "TCGA-AA-1234"),
        (" TCGA-AA-1234", "TCGA-AA-1234-01Z", "TCGA-AA-1234"),
        ("Patient7", "patient7", "Patient7"),
        ("Patient7", "Patient7\t", "Patient7"),
        ("Patient7", "Pati\u200bent7", "Patient7"),
        ("Jos\u00e9", "Jose\u0301", "Jos\u00e9"),
        ("P-7", "P\u20137", "P-7"),
        ("slide.svs", "slide", "slide"),
        ("slide.h5", "slide.svs", "slide"),
        ("001", " 001", "001"),
    ],
)
@pytest.mark.parametrize("parts", [("train", "val"), ("train", "test"), ("val", "test")])
def test_leaks_are_found_and_named(tmp_path: Path, one: str, other: str, patient: str, parts: tuple[str, str]) -> None:
    columns = {"train": ["u1", "u2"], "val": ["u3"], "test": ["u4"]}
    columns[parts[0]].append(one)
    columns[parts[1]].append(other)
    result = audit(write(tmp_path, columns["train"], columns["val"], columns["test"]))
    assert result.leaks
    assert result.splits[0].shared(*parts) == (patient,)
    assert f"leak: 1 patient in both {parts[0]} and {parts[1]}: {patient}" in "\n".join(result.lines())


def test_spellings_are_reported_even_inside_one_part(tmp_path: Path) -> None:
    result = audit(write(tmp_path, ["TCGA-AA-1234", "tcga-aa-1234"], ["b"], ["c"]))
    assert not result.leaks
    assert result.faults
    assert "is spelt 'TCGA-AA-1234' and 'tcga-aa-1234'" in "\n".join(result.lines())
    several_slides = audit(
        write(tmp_path, ["TCGA-AA-1234-01Z-00-DX1", "TCGA-AA-1234-01Z-00-DX2"], ["b"], ["c"]), case_is_slide=True
    )
    assert not several_slides.faults


def test_a_spelling_that_is_not_the_cohorts_is_reported(tmp_path: Path) -> None:
    names = [f"p{i:02}" for i in range(30)]
    result = audit(write(tmp_path, ["P00", *names[1:20]], names[20:25], names[25:]), COHORT)
    assert "fault: patient p00 is spelt 'P00'" in "\n".join(result.lines())


def test_a_table_that_names_patients_needs_no_cohort(tmp_path: Path) -> None:
    path = tmp_path / "k=all.tsv"
    path.write_text("case_id\tslide_id\tfold_0\tfold_1\np\ts1\ttrain\ttrain\np\ts2\ttest\ttrain\nq\tt\ttest\ttest\n")
    result = audit(path)
    assert [split.shared("train", "test") for split in result.splits] == [("p",), ()]
    assert "more than once" not in "\n".join(result.lines())


def test_ids_that_differ_by_zeros_are_different_patients(tmp_path: Path) -> None:
    assert not audit(write(tmp_path, ["001"], ["2"], ["1"])).leaks


def test_slides_of_one_patient_leak_only_as_the_cohort_knows(tmp_path: Path) -> None:
    path = write(tmp_path, ["s0a"], ["s1a"], ["s0b"])
    alone = audit(path)
    assert not alone.leaks
    assert alone.unknown_patients
    assert "leaks would not be seen: give the cohort" in "\n".join(alone.lines())
    assert "ok" not in "\n".join(alone.lines())
    assert not audit(path, case_is_slide=True).faults
    assert audit(path, COHORT).splits[0].shared("train", "test") == ("p00",)


def test_no_test_set_repeats_strangers_and_uncovered_patients(tmp_path: Path) -> None:
    path = write(tmp_path, [f"p{i:02}" for i in range(20)] + ["p00", "zz"], [f"p{i}" for i in range(20, 29)], [])
    result = audit(path, COHORT)
    assert not result.leaks
    text = "\n".join(result.lines())
    assert "fault: no test set" in text
    assert "fault: 1 name more than once in train: p00" in text
    assert "fault: 1 name of train not in cohort made: zz" in text
    assert "fault: 1 patient of made in no part: p29" in text
    assert "ok:" not in text


def test_slides_beyond_the_cohort_are_noted(tmp_path: Path) -> None:
    cases = tuple(Case(f"TCGA-AA-000{i}", (f"TCGA-AA-000{i}-01Z-00-DX1",), "ab"[i % 2]) for i in range(3))
    path = write(tmp_path, ["TCGA-AA-0000-01Z-00-DX1", "TCGA-AA-0000-01Z-00-DX9"], ["TCGA-AA-0001"], ["TCGA-AA-0002"])
    text = "\n".join(audit(path, Cohort("c", "classification", cases, ("a", "b"))).lines())
    assert "note: 1 slide of known patients not in cohort c: TCGA-AA-0000-01Z-00-DX9" in text


def test_shared_sites_are_a_note(tmp_path: Path) -> None:
    text = "\n".join(audit(holdout(COHORT, repeats=1), COHORT).lines())
    assert "of 3 sites in both train and test" in text
    path = write(tmp_path, ["TCGA-05-0001", "TCGA-NA-0001"], ["TCGA-3C-0001"], ["TCGA-NA-0002"])
    assert "note: 1 of 3 sites in both train and test" in "\n".join(audit(path).lines())


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, 29), max_size=6), st.integers(0, 99))
def test_exactly_the_planted_patients_are_named(
    tmp_path_factory: pytest.TempPathFactory, planted: set[int], seed: int
) -> None:
    split = holdout(COHORT, repeats=1, seed=seed)[0]
    test = list(split.test) + [f"s{i}b" for i in planted]
    found = audit(write(tmp_path_factory.mktemp("s"), list(split.train), list(split.val), test), COHORT).splits[0]
    names = {f"p{i:02}" for i in planted}
    assert set(found.shared("train", "test")) == names & set(split.train)
    assert set(found.shared("test", "val")) == names & set(split.val)
    assert found.shared("train", "val") == ()


def test_one_file_under_two_names_is_a_leak(tmp_path: Path) -> None:
    path = write(tmp_path, ["s0", "s1"], ["s2"], ["copy of s1", "s3"])
    contents = {"s0": "aa", "s1": "bb", "s2": "cc", "copy of s1": "bb"}
    assert not audit(path, case_is_slide=True).leaks
    found = audit(path, case_is_slide=True, contents=contents)
    assert found.leaks
    assert "leak: 1 slide of train and test from one file: s1 = copy of s1" in "\n".join(found.lines())
    cases = tuple(Case(f"p{i}", (name,), "ab"[i % 2]) for i, name in enumerate(["s0", "s1", "s2", "copy of s1", "s3"]))
    by_patient = Split(train=("p0", "p1"), val=("p2",), test=("p3", "p4"), scheme="x", repeat=0)
    assert audit(by_patient, Cohort("c", "classification", cases, ("a", "b")), contents=contents).leaks


def test_a_split_that_is_there_again_is_noted() -> None:
    one = Split(train=("a", "b"), val=("c",), test=("d",), scheme="x", repeat=0)
    other = Split(train=("a", "c"), val=("b",), test=("d",), scheme="x", repeat=1)
    again = Split(train=("b", "a"), val=("c",), test=("d",), scheme="x", repeat=2)
    found = audit([one, other, again], case_is_slide=True)
    assert not found.faults
    said = [[finding.what for finding in split.findings if finding.kind == "note"] for split in found.splits]
    assert said == [[], [], ["divides the patients as split 0 does"]]
