"""`marble split` as users meet it: their own headers, gaps and names."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import marble.cohorts
from marble import cli
from marble.cohorts.spec import TableSpec, option
from marble.experiment.spec import CohortSpec, ExperimentSpec
from marble.tabular import read_table
from tests.cli import running
from tests.cli.splitting import parts, refused, split, write

PATIENTS = 12
QUOTED = '"Grade I, well"'


def two_slides_each(header: str, separator: str = ",") -> str:
    """A table of patients with two slides and one of two classes."""
    rows = [separator.join((f"P{i:02d}", f"P{i:02d}-S{s}.svs", "ab"[i % 2])) for i in range(PATIENTS) for s in range(2)]
    return "\n".join([header, *rows]) + "\n"


HEADERS = [
    "case_id,slide_id,label", "Patient,slide,label", "PATIENT,Slide,Label", "Patient ID,Slide ID,LABEL",
    "patient-id,slide-id,label", "Patient.ID,File Name,Class", "\ufeffCase_ID,slide_id,label",
    "\u00a0Patient\u00a0ID ,Slide_ID\u00a0,label", "bcr_patient_barcode,FileName,Diagnosis", "_PATIENT,wsi,category",
]  # fmt: skip


@pytest.mark.parametrize("header", HEADERS)
def test_patients_stay_together_however_the_header_is_written(tmp_path: Path, header: str) -> None:
    table = write(tmp_path / "cohort.csv", two_slides_each(header))
    made = split(table, "--out", tmp_path / "out")
    assert made.exit_code == 0, made.output
    assert f"{PATIENTS} cases, {2 * PATIENTS} slides" in made.output
    for one in parts(tmp_path / "out"):
        assert sorted(one["train"] + one["val"] + one["test"]) == [f"P{i:02d}" for i in range(PATIENTS)]


def test_two_columns_of_one_name_are_an_error_that_names_both(tmp_path: Path) -> None:
    table = write(tmp_path / "cohort.csv", "Patient ID,patient_id,slide,label\na,b,s,x\nc,d,t,y\n")
    said = refused(table, "--out", tmp_path / "out")
    assert "'Patient ID' and 'patient_id'" in said


def test_two_patient_columns_that_disagree_are_an_error(tmp_path: Path) -> None:
    text = "case_id,patient_id,slide,label\nbiopsy1,p,s,x\nbiopsy2,p,t,x\nbiopsy3,q,u,y\n"
    table = write(tmp_path / "cohort.csv", text)
    assert "'case_id' and 'patient_id' both name patients" in refused(table, "--out", tmp_path / "out")
    assert "row 2" in refused(table, "--out", tmp_path / "out")
    same = write(tmp_path / "same.csv", two_slides_each("case_id,slide,label").replace("label", "label,Patient", 1))
    header, *rows = same.read_text().splitlines()
    write(same, "\n".join([header, *(f"{row},{row[:3].lower()}" for row in rows)]))
    assert split(same, "--out", tmp_path / "same").exit_code == 0


NO_PATIENT = "name,slide_id,label\n" + "".join(f"x,s{i},{'ab'[i % 2]}\n" for i in range(30))


def test_no_patient_column_is_an_error_unless_the_user_says_so(tmp_path: Path) -> None:
    table = write(tmp_path / "cohort.csv", NO_PATIENT)
    said = refused(table, "--out", tmp_path / "out")
    assert "no patient column" in said
    assert "columns here: name, slide_id, label" in said
    assert "--case " in said
    assert "--case-is-slide" in said
    assert not (tmp_path / "out").exists()
    made = split(table, "--out", tmp_path / "out", "--case-is-slide")
    assert made.exit_code == 0, made.output
    assert "every slide counts as a patient" in made.output
    known = write(tmp_path / "known.csv", two_slides_each("Patient,slide,label"))
    assert "has a patient column, 'Patient'" in refused(known, "--out", tmp_path / "other", "--case-is-slide")


def test_a_check_without_patients_is_not_ok(tmp_path: Path) -> None:
    listed = write(tmp_path / "splits_0.csv", ",train,val,test\n0,P1-S0,P2-S0,P1-S1\n")
    unknown = split("--check", listed)
    assert unknown.exit_code == 1
    assert "ok:" not in unknown.output
    assert "give the cohort table too, or say --case-is-slide" in unknown.output
    said = split("--check", listed, "--case-is-slide")
    assert said.exit_code == 0
    assert "ok:" in said.output
    table = write(tmp_path / "cohort.csv", "Patient,Slide,Label\nP1,P1-S0,a\nP1,P1-S1,a\nP2,P2-S0,b\n")
    leaking = split(table, "--check", listed)
    assert leaking.exit_code == 1
    assert "leak: 1 patient in both train and test: P1" in leaking.output
    column = write(tmp_path / "column.csv", "Patient,Slide,Split\nP1,a,train\nP1,b,test\nP2,c,val\n")
    assert "leak: 1 patient in both train and test: P1" in split("--check", column).output


GAPS = ["N/A", "NA", "unknown", "?", "-", "None", "null", "#N/A", "  ", "nan", "\u2013", "[Unknown]", "Not Available"]


@pytest.mark.parametrize("gap", GAPS)
def test_words_for_missing_are_no_class(tmp_path: Path, gap: str) -> None:
    text = two_slides_each("case_id,slide_id,label") + f"Q1,Q1-S0,{gap}\nQ2,Q2-S0,{gap}\n"
    table = write(tmp_path / "cohort.csv", text)
    first = 2 * PATIENTS + 2
    said = refused(table, "--out", tmp_path / "out")
    assert f"row {first}, column 'label': no value for 'Q1-S0'" in said
    assert f"nor in row {first + 1}" in said
    made = split(table, "--out", tmp_path / "out", "--drop", "missing")
    assert made.exit_code == 0, made.output
    assert re.search(rf"excluded: 2 \(no label.*\): rows {first}, {first + 1}", made.output)
    assert all("Q1" not in one["train"] + one["val"] + one["test"] for one in parts(tmp_path / "out"))
    if gap.strip():
        kept = split(table, "--out", tmp_path / "kept", "--keep-as-class", gap)
        assert kept.exit_code == 0, kept.output
        assert f"class {unicodedata.normalize('NFC', gap).strip()}: 2" in kept.output


def test_a_class_needs_no_keeping(tmp_path: Path) -> None:
    table = write(tmp_path / "cohort.csv", two_slides_each("case_id,slide_id,label"))
    assert "is a class anyway" in refused(table, "--out", tmp_path / "out", "--keep-as-class", "a")


def test_gaps_in_times_events_and_sites(tmp_path: Path) -> None:
    rows = [f"P{i},s{i},{i + 1},{i % 2},{'A' if i % 2 else 'unknown'}" for i in range(12)]
    text = "\n".join(["case_id,slide_id,time,event,site", *rows, "Q1,t1,?,1,A", "Q2,t2,5,unknown,A"]) + "\n"
    table = write(tmp_path / "cohort.csv", text)
    assert "row 14, column 'time'" in refused(table, "--out", tmp_path / "out")
    made = split(table, "--out", tmp_path / "out", "--drop", "missing")
    assert made.exit_code == 0, made.output
    assert "excluded: 1 (no time: '?'): row 14" in made.output
    assert "excluded: 1 (no event: 'unknown'): row 15" in made.output
    assert "sites: 1" in made.output
    assert "'unknown' in column 'site' means that the site is not known (6 rows)" in made.output


def test_ids_are_text_and_the_site_na_is_a_site(tmp_path: Path) -> None:
    rows = [
        f"TCGA-{site}-000{i},TCGA-{site}-000{i}-01Z,{'ab'[i % 2]},{site}" for site in ("NA", "05") for i in range(8)
    ]
    rows += ["NA,s1,a,05", "001,s2,b,05", "1,s3,b,05"]
    table = write(tmp_path / "cohort.csv", "\n".join(["case_id,slide_id,label,site", *rows]) + "\n")
    made = split(table, "--out", tmp_path / "out", "--drop", "missing")
    assert made.exit_code == 0, made.output
    assert "sites: 2" in made.output
    everybody = set(parts(tmp_path / "out")[0]["train"]) | set(parts(tmp_path / "out")[0]["val"])
    everybody |= set(parts(tmp_path / "out")[0]["test"])
    assert {"NA", "001", "1", "TCGA-NA-0003"} <= everybody
    assert "excluded" not in made.output


SPELLINGS = [
    ("Jos\u00e9", "Jose\u0301"), ("M\u00fcller", "Mu\u0308ller"), ("P1", "P1\u200b"), ("P1", "\u202aP1\u202c"),
    ("P1", " P1\u00a0"), ("P 1", "P\u00a01"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SPELLINGS)
@pytest.mark.parametrize("seed", range(5))
def test_two_forms_of_one_name_are_one_patient(tmp_path: Path, one: str, other: str, seed: int) -> None:
    text = two_slides_each("case_id,slide_id,label") + f"{one},a1,a\n{other},a2,a\n"
    table = write(tmp_path / "cohort.csv", text)
    made = split(table, "--out", tmp_path / "out", "--repeats", "8", "--seed", str(seed))
    assert made.exit_code == 0, made.output
    for one_split in parts(tmp_path / "out"):
        assert len(one_split["train"] + one_split["val"] + one_split["test"]) == PATIENTS + 1


@pytest.mark.parametrize(("one", "other"), [("p1x", "P1X"), ("P\u20131", "P-1"), ("\uff3019", "P19")])
def test_two_spellings_of_one_patient_are_an_error(tmp_path: Path, one: str, other: str) -> None:
    table = write(tmp_path / "cohort.csv", two_slides_each("case_id,slide_id,label") + f"{one},a1,a\n{other},a2,a\n")
    assert f"patient '{other}' is '{one}'" in refused(table, "--out", tmp_path / "out")


def test_a_clinical_table_and_a_slide_table_in_two_forms(tmp_path: Path) -> None:
    clinical = write(
        tmp_path / "clini.csv", "PATIENT,KRAS\n" + "".join(f"Jos\u00e9{i},{'ab'[i % 2]}\n" for i in range(12))
    )
    slides = write(
        tmp_path / "slides.csv", "Patient,File Name\n" + "".join(f"JOSE\u0301{i},f{i}.h5\n" for i in range(12))
    )
    made = split(clinical, "--out", tmp_path / "out", "--label", "KRAS", "--slide-table", slides)
    assert made.exit_code == 0, made.output
    assert "12 cases, 12 slides" in made.output


def test_a_semicolon_in_a_slide_id_is_a_character_like_others(tmp_path: Path) -> None:
    table = write(tmp_path / "cohort.csv", two_slides_each("case_id,slide_id,label") + "Q,a;b.svs,a\n")
    made = split(table, "--out", tmp_path / "out", "--folds", "3")
    assert made.exit_code == 0, made.output
    for one in (tmp_path / "out" / "kfold-3").glob("splits_*.csv"):
        assert "a;b" in [cell for row in read_table(one).rows for cell in row.cells]
        assert "leak" not in split(table, "--check", one).output.replace("leaked patients: 0", "")


def test_every_way_to_read_a_table_is_a_flag_and_a_key(tmp_path: Path) -> None:
    reader = {field.name for field in fields(TableSpec)}
    command = {parameter.name for parameter in _command().params}
    assert reader <= command
    assert reader - {"task"} == set(CohortSpec.model_fields) - {"path", "patients"}
    assert "task" in ExperimentSpec.model_fields


def _command() -> Any:
    return get_command(cli.assemble()).commands["split"]  # type: ignore[attr-defined]


def test_hints_name_flags_and_keys_that_exist() -> None:
    sources = "".join(path.read_text() for path in Path(marble.cohorts.__file__).parent.glob("*.py"))
    flags = {flag for parameter in _command().params for flag in parameter.opts if flag.startswith("--")}
    keys = {*CohortSpec.model_fields, "task"}
    named = re.findall(r"option\(['\"](\w+)['\"]\)", sources)
    assert len(named) > 15
    for key in named:
        assert option(key).startswith(f"--{key.replace('_', '-')} ")
        assert f"--{key.replace('_', '-')}" in flags
        assert key in keys
    assert set(re.findall(r"--[a-z][a-z-]+", sources)) <= flags
    assert not re.findall(r"hint.*\b(?:case|slide|label|time|event|drop|task|slides)=", sources)


def test_flags_choose_the_columns(tmp_path: Path) -> None:
    rows = [f"P{i},s{i},{i + 1},{'dead' if i % 2 else 'alive'},{'xyz'[i % 3]},H{i % 4}" for i in range(24)]
    table = write(tmp_path / "cohort.csv", "\n".join(["Fall,Bild,Monate,Status,Typ,Klinik", *rows]))
    who = ("--case", "fall", "--slide", "BILD")
    made = split(table, "--out", tmp_path / "a", *who, "--time", "monate", "--event", "status", "--site", "Klinik")
    assert made.exit_code == 0, made.output
    assert "events: 12, censored: 12" in made.output
    assert "sites: 4" in made.output
    made = split(table, "--out", tmp_path / "b", *who, "--label", "Typ", "--classes", "z,y", "--drop", "other")
    assert made.exit_code == 0, made.output
    assert made.output.index("class z: 8") < made.output.index("class y: 8")
    assert "excluded: 8 (class x is not one of the classes)" in made.output


def test_folds_are_written_once_unless_repeats_are_asked_for(tmp_path: Path) -> None:
    table = write(tmp_path / "cohort.csv", two_slides_each("case_id,slide_id,label"))
    assert split(table, "--out", tmp_path / "a", "--folds", "4").exit_code == 0
    assert len(parts(tmp_path / "a" / "kfold-4")) == 4
    assert split(table, "--out", tmp_path / "b", "--scheme", "kfold", "--folds", "3", "--repeats", "2").exit_code == 0
    assert len(parts(tmp_path / "b" / "kfold-3")) == 6
    assert split(table, "--out", tmp_path / "c").exit_code == 0
    assert len(parts(tmp_path / "c" / "holdout")) == 5
    assert "--folds belongs to kfold" in refused(table, "--out", tmp_path / "d", "--scheme", "holdout", "--folds", "4")


def test_splits_that_few_sites_make_again_are_counted(tmp_path: Path) -> None:
    """Three hospitals fill three parts in six ways at most, so of many repeats some are the same."""
    rows = "".join(f"P{n},S{n},{'ab'[n % 2]},{'XYZ'[n % 3]}\n" for n in range(24))
    table = write(tmp_path / "cohort.csv", f"case_id,slide_id,label,site\n{rows}")
    few = split(table, "--out", tmp_path / "a", "--by-site", "--folds", "3", "--repeats", "7")
    assert few.exit_code == 0
    made = parts(tmp_path / "a" / "kfold-3-by-site")
    different = {tuple(tuple(one[part]) for part in ("train", "val", "test")) for one in made}
    assert f"note: {21 - len(different)} of 21 splits divide the patients as earlier ones do" in few.output
    assert "divide the patients" not in split(table, "--out", tmp_path / "b", "--folds", "3").output


def test_a_check_looks_one_folder_down(tmp_path: Path) -> None:
    table = write(tmp_path / "c.csv", two_slides_each("case_id,slide_id,label"))
    assert split(table, "--out", tmp_path / "splits", "--repeats", "2").exit_code == 0
    inside = split(table, "--check", tmp_path / "splits" / "holdout")
    outside = split(table, "--check", tmp_path / "splits")
    assert (inside.exit_code, outside.exit_code) == (0, 0)
    assert outside.output == inside.output
    assert split(table, "--out", tmp_path / "splits", "--folds", "3").exit_code == 0
    several = split(table, "--check", tmp_path / "splits")
    assert "several folders of splits are here: holdout, kfold" in str(several.exception)


def test_a_check_that_lists_a_fault_ends_with_one(tmp_path: Path) -> None:
    table = write(tmp_path / "c.csv", "case_id,slide_id,label\nP1,a,x\nP2,b,y\nP3,c,x\n")
    untested = write(tmp_path / "splits_0.csv", ",train,val,test\n0,a,b,\n1,c,,\n")
    checked = split(table, "--check", untested)
    assert "fault: no test set" in checked.output
    assert "with other faults: 1" in checked.output
    assert checked.exit_code == 1


def test_one_slide_in_two_spellings_is_not_two_patients(tmp_path: Path) -> None:
    rows = two_slides_each("case_id,slide_id,label")
    twice = write(tmp_path / "twice.csv", rows + "P02,p00-s0.tiff,a\n")
    said = refused(twice, "--out", tmp_path / "out")
    assert "row 26, column 'slide_id': slide 'p00-s0' of patient 'P02' is 'P00-S0' of patient 'P00' in row 2" in said
    own = write(tmp_path / "own.csv", rows + "P00,p00-s0.tiff,a\n")  # two blocks of one patient are in one part
    assert split(own, "--out", tmp_path / "own").exit_code == 0


@pytest.mark.parametrize(("first", "spelt"), [("a", "A"), ("1", "1.0")])
def test_rows_of_a_class_in_another_spelling_are_not_left_out_as_another_class(
    tmp_path: Path, first: str, spelt: str
) -> None:
    text = two_slides_each("case_id,slide_id,label").replace(",a\n", f",{first}\n")
    table = write(tmp_path / "cohort.csv", text + f"P98,P98-S0,other\nP99,P99-S0,{spelt}\n")
    said = refused(table, "--out", tmp_path / "out", "--classes", f"{first},b", "--drop", "other")
    assert f"row 27, column 'label': class '{spelt}' is '{first}' in --classes" in said


def test_a_hint_for_too_few_patients_can_be_followed(tmp_path: Path) -> None:
    table = write(tmp_path / "cohort.csv", "case_id,slide_id,label\nP1,a,x\nP2,b,y\nP3,c,x\nP4,d,y\n")
    for scheme in ("holdout", "kfold"):
        said = refused(table, "--out", tmp_path / "out", "--scheme", scheme)
        assert "4 patients are too few" in said
        (folds,) = re.findall(r"--folds (\d+)", said)
    assert split(table, "--out", tmp_path / "out", "--folds", folds).exit_code == 0
    two = write(tmp_path / "two.csv", "case_id,slide_id,label\nP1,a,x\nP2,b,y\n")
    assert refused(two, "--out", tmp_path / "none").endswith("Add patients")


def test_a_table_of_numbers_says_how_to_predict_them(tmp_path: Path) -> None:
    table = write(tmp_path / "cohort.csv", "case_id,slide_id,target\n" + "".join(f"P{i},S{i},{i}\n" for i in range(20)))
    said = refused(table, "--out", tmp_path / "out")
    assert "to predict the numbers of 'target' say --task regression" in said
    assert split(table, "--out", tmp_path / "out", "--task", "regression").exit_code == 0


def test_a_negative_seed_is_one_line(tmp_path: Path) -> None:
    table = tmp_path / "cohort.csv"
    table.write_text("case_id,slide_id,label\n" + "".join(f"P{k},S{k},{'ab'[k % 2]}\n" for k in range(30)))
    for scheme in ("holdout", "kfold"):
        ended = running.marble("split", table, "--out", tmp_path / "splits", "--scheme", scheme, "--seed", -1)
        assert ended.code == 2
        assert ended.output.splitlines()[-1] == "error: the seed -1 is negative. Give a whole number from 0 on"


def test_a_class_with_a_comma_can_be_named(tmp_path: Path) -> None:
    rows = [f"P{i:02d},P{i:02d}-S,{'Grade II' if i % 2 else QUOTED}" for i in range(PATIENTS)]
    table = write(tmp_path / "cohort.csv", "\n".join(["case_id,slide_id,label", *rows]))
    said = refused(table, "--out", tmp_path / "out", "--classes", "Grade II,Grade III")
    assert "unknown class 'Grade I, well'" in said
    said = refused(table, "--out", tmp_path / "out", "--classes", f"{QUOTED},Grade III")
    assert f"unknown class 'Grade II'; did you mean 'Grade III'? Valid: {QUOTED}, Grade III" in said
    made = split(table, "--out", tmp_path / "out", "--classes", f"{QUOTED}, Grade II")
    assert made.exit_code == 0, made.output
    assert "class Grade I, well: 6" in made.output
    for nothing in ("", "a"):
        assert "are not two or more different names" in refused(table, "--out", tmp_path, "--classes", nothing)
