"""Split files: ours there and back, and the formats of other tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marble.cohorts import Case, Cohort, Split, audit, holdout, kfold, read_splits, write_splits
from marble.errors import IntegrityError, SplitError

COHORT = Cohort(
    "made",
    "classification",
    tuple(Case(f"p{i:02}", (f"s{i}a", f"s{i}b"), "ab"[i % 2]) for i in range(30)),
    ("a", "b"),
)
SMALL = Cohort(
    "small",
    "classification",
    tuple(Case(name, (f"{name}-1", f"{name}-2"), "ab"[i % 2]) for i, name in enumerate(["001", "NA", "q", "r"])),
    ("a", "b"),
)


def parts(path: Path, cohort: Cohort | None = None) -> list[tuple[tuple[str, ...], ...]]:
    return [(split.train, split.val, split.test) for split in read_splits(path, cohort)]


def test_ours_there_and_back(tmp_path: Path) -> None:
    splits = holdout(COHORT, repeats=3, seed=7) + kfold(COHORT, 5)
    written = write_splits(splits, tmp_path)
    assert (tmp_path / "holdout" / "0.json") in written
    assert read_splits(tmp_path / "holdout", COHORT) == splits[:3]
    assert read_splits(tmp_path / "kfold-5", COHORT) == splits[3:]
    assert read_splits(tmp_path / "kfold-5" / "2.json") == [splits[5]]


@pytest.mark.parametrize("with_slides", [False, True])
def test_the_clam_copy_says_the_same(tmp_path: Path, with_slides: bool) -> None:
    splits = holdout(COHORT, repeats=2)
    write_splits(splits, tmp_path, COHORT if with_slides else None)
    text = (tmp_path / "holdout" / "splits_1.csv").read_text()
    assert text.startswith(",train,val,test\n0,")
    assert ("s1a" in text) == with_slides
    read = read_splits(tmp_path / "holdout" / "splits_1.csv", COHORT)[0]
    assert (read.train, read.val, read.test) == (splits[1].train, splits[1].val, splits[1].test)
    assert (read.scheme, read.repeat) == ("holdout", 1)


def test_a_split_that_is_there_is_never_changed(tmp_path: Path) -> None:
    first = holdout(COHORT, repeats=1, seed=0)
    write_splits(first, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    write_splits(first, tmp_path)
    with pytest.raises(SplitError, match="another split of this name"):
        write_splits(holdout(COHORT, repeats=1, seed=1), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_where_one_of_several_splits_cannot_be_written_none_is(tmp_path: Path) -> None:
    write_splits(holdout(COHORT, repeats=2, seed=0)[1:], tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SplitError, match=r"1\.json: another split of this name"):
        write_splits(holdout(COHORT, repeats=2, seed=1), tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_split_changed_by_hand_is_noticed(tmp_path: Path) -> None:
    write_splits(holdout(COHORT, repeats=1), tmp_path)
    path = tmp_path / "holdout" / "0.json"
    content = json.loads(path.read_text())
    content["train"].append(content["test"].pop())
    path.write_text(json.dumps(content))
    with pytest.raises(IntegrityError, match="fingerprint"):
        read_splits(path)
    path.write_text("{")
    with pytest.raises(SplitError, match="not readable as JSON: not valid JSON"):
        read_splits(path)


def test_clam_lists_of_slides_or_cases_padded_or_ragged(tmp_path: Path) -> None:
    expected = [(("001", "NA"), ("q",), ("r",))]
    path = tmp_path / "splits_3.csv"
    for text in (
        ",train,val,test\n0,001-1,q-1,r-1\n1,001-2,q-2,r-2\n2,NA-1,,\n3,NA-2.svs,,\n",
        ",train,val,test\n0,001,q,r\n1,NA,,\n",
        "train,val,test\n001,q,r\nNA\n",
        ",train,val,test\n0,001-1,q-1,r-1\n1,NA-1\n",
    ):
        path.write_text(text)
        assert parts(path, SMALL) == expected
        assert read_splits(path, SMALL)[0].repeat == 3


def test_clam_flags(tmp_path: Path) -> None:
    path = tmp_path / "splits_0_bool.csv"
    path.write_text(
        ",train,val,test\n001-1,True,False,False\nNA,True,False,False\nq,False,True,False\nr,False,False,True\n"
    )
    assert parts(path, SMALL) == [(("001", "NA"), ("q",), ("r",))]
    assert parts(tmp_path, SMALL) == [(("001", "NA"), ("q",), ("r",))]


def test_stamp(tmp_path: Path) -> None:
    path = tmp_path / "splits.json"
    path.write_text(json.dumps({"splits": [{"train_patients": ["001", "NA", "q"], "test_patients": ["r"]}]}))
    assert parts(path) == [(("001", "NA", "q"), (), ("r",))]
    with pytest.raises(SplitError, match=r"val part is empty.*val_share"):
        read_splits(path, SMALL)
    made = read_splits(path, SMALL, val_share=0.34)[0]
    assert len(made.val) == 1
    assert made.test == ("r",)


def test_patho_bench_folds_and_split_columns(tmp_path: Path) -> None:
    folds = tmp_path / "k=all.tsv"
    folds.write_text("case_id\tslide_id\tx\tfold_0\tfold_1\n001\t001-1\t1\ttrain\ttest\nq\tq-1\t0\ttest\ttrain\n")
    assert parts(folds, None) == [(("001",), (), ("q",)), (("q",), (), ("001",))]
    column = tmp_path / "labels.csv"
    column.write_text("File Name,Data Split\n001-1,Train\nNA-2,train\nq-1,Val\nr-1,TEST\n")
    assert parts(column, SMALL) == [(("001", "NA"), ("q",), ("r",))]


def test_a_fold_without_test_can_be_completed_honestly(tmp_path: Path) -> None:
    path = tmp_path / "splits_0.csv"
    names = [f"p{i:02}" for i in range(30)]
    path.write_text(
        ",train,val,test\n" + "".join(f"{i},{names[i]},{names[20 + i] if i < 10 else ''},\n" for i in range(20))
    )
    with pytest.raises(SplitError, match="test part is empty"):
        read_splits(path, COHORT)
    made = read_splits(path, COHORT, val_as_test=True, val_share=0.1)[0]
    assert made.test == tuple(names[20:])
    assert len(made.val) == 2
    assert set(made.train) | set(made.val) == set(names[:20])
    with pytest.raises(SplitError, match="needs the cohort"):
        read_splits(path, val_as_test=True, val_share=0.1)


def test_names_the_cohort_does_not_have(tmp_path: Path) -> None:
    path = tmp_path / "splits_0.csv"
    path.write_text(",train,val,test\n0,001,q,r\n1,NA,zz,\n")
    with pytest.raises(SplitError, match="'zz'"):
        read_splits(path, SMALL)
    assert read_splits(path, SMALL, drop_unknown=True)[0].val == ("q",)


def test_a_leak_is_refused_with_patient_row_and_parts(tmp_path: Path) -> None:
    path = tmp_path / "splits_0.csv"
    for one, other in [("001-1", "001-2"), ("r", "R "), ("r-1", "r"), ("NA", "NA-1.svs")]:
        path.write_text(f",train,val,test\n0,q,x,y\n1,{one},,{other}\n")
        with pytest.raises(SplitError, match=r"row 3, column 'test': patient '.*' is in train and in test"):
            read_splits(path, SMALL)
    path.write_text(",train,val,test\n0,TCGA-AA-0001-01Z,TCGA-AA-0001-02Z,x\n")
    with pytest.raises(SplitError, match="'TCGA-AA-0001' is in train and in val"):
        read_splits(path)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("splits_0_descriptor.csv", ",train,val,test\nLUAD,4,2,2\nLUSC,4,2,2\n", "counts classes"),
        ("labels.csv", "case_id,label\np,a\n", "no split format is known"),
        ("labels.csv", "name,split\np,train\n", "no slide or patient column"),
        ("labels.csv", "slide_id,split\np,train\nq,maybe\n", r"row 3, column 'split': 'maybe'"),
        ("splits_0.csv", ",train,val,test\n", "no rows"),
        ("splits_0.csv", ",train,val,test\n0,a,b,c,d\n", "row 2"),
        ("splits_0_bool.csv", ",train,val\n,True,False\n", "row 2, column 1: the row has no name"),
        ("splits.json", '{"splits": [{"train_patients": [1], "test_patients": []}]}', r"splits\[0\].train_patients"),
        ("splits.json", '{"splits": [{"test_patients": ["a"]}]}', "no training patients"),
        ("splits.json", '{"splits": ["a"]}', r"splits\[0\]"),
        ("splits.json", '["a"]', "not a split file that is known"),
        ("splits.json", "[" * 100_000, "not readable as JSON"),
        ("splits.json", "1" * 10_000, "not readable as JSON"),
    ],
)
def test_malformed_split_files(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(SplitError, match=said) as caught:
        read_splits(path)
    assert str(path) in str(caught.value)
    assert caught.value.hint


def test_missing_paths(tmp_path: Path) -> None:
    with pytest.raises(SplitError, match="no split files"):
        read_splits(tmp_path)
    with pytest.raises(SplitError, match="no such file"):
        read_splits(tmp_path / "splits_0.csv")
    with pytest.raises(SplitError, match="no such file"):
        read_splits(tmp_path / "0.json")


def test_a_split_file_in_the_current_folder_has_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my splits (v2)"
    folder.mkdir()
    (folder / "splits_4.csv").write_text(",train,val,test\n0,a,b,c\n")
    monkeypatch.chdir(folder)
    split = read_splits("splits_4.csv")[0]
    assert (split.scheme, split.repeat) == ("my-splits-v2", 4)


def test_names_in_the_written_csv_never_start_a_formula(tmp_path: Path) -> None:
    write_splits([Split(train=("=1+1",), val=("@x",), test=("-y",), scheme="x", repeat=0)], tmp_path)
    assert (tmp_path / "x" / "splits_0.csv").read_text() == ",train,val,test\n0,'=1+1,'@x,'-y\n"
    assert read_splits(tmp_path / "x")[0].train == ("=1+1",)


def test_a_foreign_file_in_the_way_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "holdout").mkdir()
    (tmp_path / "holdout" / "0.json").write_text("[]")
    with pytest.raises(SplitError, match="not a split file"):
        write_splits(holdout(COHORT, repeats=1), tmp_path)


def test_a_name_of_one_patient_and_of_anothers_slide_is_not_guessed(tmp_path: Path) -> None:
    """Numbered patients with numbered slides: taken for patients, the slides' split is another one without a word."""
    cohort = Cohort(
        "numbered", "classification",
        tuple(Case(str(i), (str((i + 1) % 3), f"{i}b"), "ab"[i % 2]) for i in range(3)), ("a", "b"),
    )  # fmt: skip
    split = Split(train=("0",), val=("1",), test=("2",), scheme="holdout", repeat=0)
    write_splits([split], tmp_path, cohort)
    assert read_splits(tmp_path / "holdout", cohort) == [split]  # our own says patients
    bare = tmp_path / "holdout" / "splits_0.csv"
    said = r"splits_0\.csv, row 2, column 'train': '1' is a patient of the cohort, and also a slide of patient '0'"
    for read in (read_splits, audit):
        with pytest.raises(SplitError, match=said):
            read(bare, cohort)
    told = tmp_path / "told.csv"
    told.write_text("case_id,slide_id,split\n0,1,train\n1,2,val\n2,0,test\n")
    assert parts(told, cohort) == [(split.train, split.val, split.test)]


def test_of_two_splits_of_one_number_one_would_be_tested_on_patients_it_was_trained_on(tmp_path: Path) -> None:
    for seed in (0, 5):
        write_splits(holdout(COHORT, repeats=1, seed=seed), tmp_path / str(seed))
    (tmp_path / "5" / "holdout" / "0.json").rename(tmp_path / "0" / "holdout" / "1.json")
    with pytest.raises(SplitError, match=r"1\.json: split 0 is there twice, also as \S+0\.json\. Keep one of them"):
        read_splits(tmp_path / "0" / "holdout", COHORT)
