"""The layouts that public tools and portals write, each from a small table made here."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from marble.cohorts import read_cohort
from marble.errors import TableError
from marble.identifiers import slide_id_of, spelling_key, tcga_patient, tcga_site
from marble.targets import SurvivalTime


def write(folder: Path, text: str, name: str = "cohort.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def targets(path: Path, **options: object) -> dict[str, object]:
    cohort = read_cohort(path, **options)  # type: ignore[arg-type]
    return {case.case_id: case.target for case in cohort.cases}


def test_clam(tmp_path: Path) -> None:
    cohort = read_cohort(write(tmp_path, ",case_id,slide_id,label\n0,001,s.1.svs,b\n1,1,s2,a\n2,NA,s3,b\n"))
    assert (cohort.name, cohort.task, cohort.classes) == ("cohort", "classification", ("a", "b"))
    assert {case.case_id: case.slides for case in cohort.cases} == {"001": ("s.1",), "1": ("s2",), "NA": ("s3",)}
    assert any("zeros count" in note for note in cohort.notes)


def test_the_survival_family_counts_censoring_not_events(tmp_path: Path) -> None:
    path = write(tmp_path, ",case_id,slide_id,censorship,survival_months\n0,p,s,1.0,24.11\n1,q,t,0.0,7\n")
    assert targets(path) == {"p": SurvivalTime(24.11, False), "q": SurvivalTime(7.0, True)}


def test_another_outcome_of_the_survival_family_keeps_its_coding(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "case_id,slide_id,survival_months,censorship,survival_months_dss,censorship_dss\np,s,1,1,2,0\nq,t,1,0,3,1\n",
    )
    found = targets(path, time="survival_months_dss", event="censorship_dss")
    assert found == {"p": SurvivalTime(2, True), "q": SurvivalTime(3, False)}


def test_own_survival_table(tmp_path: Path) -> None:
    path = write(tmp_path, "case_id;slide_id;time;event\np;s;1e1;1\nq;t;0;false\n")
    assert targets(path) == {"p": SurvivalTime(10, True), "q": SurvivalTime(0, False)}


def test_event_coding_is_asked_for_then_obeyed(tmp_path: Path) -> None:
    path = write(tmp_path, "patient,slide_id,months,status\ns,a,1,1\nt,b,2,0\n")
    as_event = targets(path, time="months", event="status", event_coding="1=event")
    as_censored = targets(path, time="months", event="status", event_coding="1=censored")
    assert as_event == {"s": SurvivalTime(1, True), "t": SurvivalTime(2, False)}
    assert as_censored == {"s": SurvivalTime(1, False), "t": SurvivalTime(2, True)}


def test_a_declared_coding_against_the_format_is_noted(tmp_path: Path) -> None:
    path = write(tmp_path, "case_id,slide_id,survival_months,censorship\np,s,1,1\nq,t,1,0\n")
    cohort = read_cohort(path, event_coding="1=event")
    assert cohort.case("p").target == SurvivalTime(1, True)
    assert any("usually is 1=censored" in note for note in cohort.notes)


def test_stamp_clini_and_slide_tables(tmp_path: Path) -> None:
    clini = write(tmp_path, "PATIENT,KRAS,days,vital\n01,mut,5,dead\n02,wt,6,Alive\n03,wt,7,alive\n", "clini.csv")
    slides = write(tmp_path, "PATIENT,FILENAME\n01,a/x.h5\n01,y.h5\n02,z.h5\n09,w.h5\n", "slides.csv")
    cohort = read_cohort(clini, label="KRAS", slide_table=slides)
    assert {case.case_id: case.slides for case in cohort.cases} == {"01": ("x", "y"), "02": ("z",)}
    assert sorted((item.name, item.reason) for item in cohort.excluded) == [
        ("03", "patient has no slide"),
        ("w", "patient is not in the clinical table"),
    ]
    survival = read_cohort(clini, time="days", event="vital", slide_table=slides)
    assert survival.case("01").target == SurvivalTime(5, True)


def test_patho_bench_labels_and_survival(tmp_path: Path) -> None:
    labels = write(
        tmp_path, "case_id\tslide_id\tBAP1\tfold_0\tfold_1\np\ts\t1\ttrain\ttest\nq\tt\t0\ttest\ttrain\n", "k.tsv"
    )
    assert targets(labels) == {"p": "1", "q": "0"}
    times = write(
        tmp_path, "case_id\tslide_id\tOS_event\tOS_days\tOS\tfold_0\np\ts\t1\t9\t2\ttrain\nq\tt\t0\t8\t1\ttest\n"
    )
    assert targets(times) == {"p": SurvivalTime(9, True), "q": SurvivalTime(8, False)}


def test_pathbench(tmp_path: Path) -> None:
    path = write(tmp_path, "slide,patient,dataset,category\ns,p,x,a\nt,q,x,b\n")
    assert targets(path) == {"p": "a", "q": "b"}


def test_panda(tmp_path: Path) -> None:
    text = "image_id,data_provider,isup_grade,gleason_score\n" + "".join(f"i{g},radboud,{g},0+0\n" for g in (10, 2, 0))
    with pytest.raises(TableError, match=r"no patient column.*image_id, data_provider, isup_grade.*--case-is-slide"):
        read_cohort(write(tmp_path, text))
    cohort = read_cohort(write(tmp_path, text), case_is_slide=True)
    assert cohort.classes == ("0", "2", "10")
    assert cohort.case("i2").site == "radboud"
    assert any("every slide counts as a patient" in note for note in cohort.notes)


def test_tcga_clinical_data_resource(tmp_path: Path) -> None:
    path = write(
        tmp_path, ",bcr_patient_barcode,OS,OS.time,PFI,PFI.time\n1,TCGA-OR-A5J1,1,1355,1,754\n2,TCGA-NA-A4QV,0,9,1,3\n"
    )
    slides = ["TCGA-OR-A5J1-01Z-00-DX1.X.svs", "TCGA-NA-A4QV-01Z-00-DX1.Y", "TCGA-ZZ-0000-01Z-00-DX1.Z"]
    cohort = read_cohort(path, slides=slides)
    assert cohort.case("TCGA-OR-A5J1").target == SurvivalTime(1355, True)
    assert cohort.case("TCGA-NA-A4QV").site == "NA"
    assert [item.name for item in cohort.excluded] == ["TCGA-ZZ-0000-01Z-00-DX1.Z"]
    other = read_cohort(path, time="PFI.time", event="PFI", slides=slides)
    assert other.case("TCGA-NA-A4QV").target == SurvivalTime(3, True)


def test_cbioportal(tmp_path: Path) -> None:
    text = "#Patient\tStatus\tMonths\n#STRING\tSTRING\tNUMBER\nPATIENT_ID\tOS_STATUS\tOS_MONTHS\n"
    text += "TCGA-AA-0001\t1:DECEASED\t3.5\nTCGA-AA-0002\t0:LIVING\t4\nTCGA-AA-0003\t[Not Available]\t\n"
    slides = [f"TCGA-AA-000{i}-01Z-00-DX1" for i in (1, 2, 3)]
    cohort = read_cohort(write(tmp_path, text, "data_clinical_patient.txt"), slides=slides, drop=("missing",))
    assert [case.target for case in cohort.cases] == [SurvivalTime(3.5, True), SurvivalTime(4, False)]
    assert [(item.name, item.reason) for item in cohort.excluded] == [("TCGA-AA-0003", "no OS_MONTHS")]
    assert cohort.name == "data_clinical_patient"


def test_tcga_patients_and_sites_come_from_the_barcode(tmp_path: Path) -> None:
    text = "slide_id,label,site\nTCGA-05-4244-01Z-00-DX1.AB.svs,a,5\nTCGA-05-4244-01Z-00-DX2.CD.svs,a,5\n"
    text += "TCGA-NA-A4QV-01A,b,\n"
    cohort = read_cohort(write(tmp_path, text))
    assert [(case.case_id, len(case.slides), case.site) for case in cohort.cases] == [
        ("TCGA-05-4244", 2, "05"),
        ("TCGA-NA-A4QV", 1, "NA"),
    ]
    assert any("differs from the TCGA barcode's site" in note for note in cohort.notes)


def test_a_slide_barcode_in_the_case_column_is_cut_to_the_patient(tmp_path: Path) -> None:
    text = "case_id,slide_id,label\n" + "".join(
        f"TCGA-05-4244-01Z-00-DX{i},TCGA-05-4244-01Z-00-DX{i},a\n" for i in (1, 2)
    )
    cohort = read_cohort(write(tmp_path, text + "q,s,b\n"))
    assert cohort.case("TCGA-05-4244").slides == ("TCGA-05-4244-01Z-00-DX1", "TCGA-05-4244-01Z-00-DX2")
    assert any("cut to the patient" in note for note in cohort.notes)


def test_slides_of_a_patient_may_differ_only_when_scored_by_slide(tmp_path: Path) -> None:
    path = write(tmp_path, "slide_id,patient_id,grade\ns1,4,low\ns2,4,high\ns3,4,high\ns4,5,low\n")
    cohort = read_cohort(path, label="grade", scored_by="slide")
    assert [(unit.unit_id, unit.case_id, unit.target) for unit in cohort.units()] == [
        ("s1", "4", "low"), ("s2", "4", "high"), ("s3", "4", "high"), ("s4", "5", "low"),
    ]  # fmt: skip
    assert cohort.case("4").target == "high"


def test_left_out_rows_are_counted_by_reason(tmp_path: Path) -> None:
    path = write(tmp_path, "case_id,slide_id,label\np,s,IDC\nq,t,ILC\nr,u,MDLC\nv,w,\n")
    cohort = read_cohort(path, classes=("ILC", "IDC"), drop=("other", "missing"))
    assert cohort.classes == ("ILC", "IDC")
    assert [(item.name, item.reason) for item in cohort.excluded] == [
        ("u", "class MDLC is not one of the classes"),
        ("w", "no label"),
    ]
    assert "excluded: 1 (no label)" in cohort.summary()


def test_the_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    rows = ["p,s2,a", "p,s1,a", "q,t,b", "o,u,b"]
    one = read_cohort(write(tmp_path, "\n".join(["case_id,slide_id,label", *rows])))
    two = read_cohort(write(tmp_path, "\n".join(["case_id,slide_id,label", *rows[::-1]])))
    assert one == two


def test_a_patient_of_two_sites_has_none(tmp_path: Path) -> None:
    cohort = read_cohort(write(tmp_path, "case_id,slide_id,label,site\np,s,a,x\np,t,a,y\nq,u,b,x\n"))
    assert [case.site for case in cohort.cases] == [None, "x"]
    assert any("several sites" in note for note in cohort.notes)


def test_names_of_packed_tables(tmp_path: Path) -> None:
    path = tmp_path / "lung.csv.gz"
    path.write_bytes(gzip.compress(b"case_id,slide_id,label\np,s,a\nq,t,b\n"))
    assert read_cohort(path).name == "lung"
    assert read_cohort(path, name="other").name == "other"


@pytest.mark.parametrize(
    ("name", "slide_id"),
    [
        ("a.svs", "a"), ("a.b.SVS", "a.b"), ("x/y\\a.h5", "a"), ("a.v2", "a.v2"), ("a.csv", "a.csv"), (".svs", ".svs"),
        ("TCGA-05-4244-01Z-00-DX1.AB-CD", "TCGA-05-4244-01Z-00-DX1.AB-CD"), ("a.pt", "a"), ("1.5", "1.5"),
    ],
)  # fmt: skip
def test_only_known_extensions_are_taken_off(name: str, slide_id: str) -> None:
    assert slide_id_of(name) == slide_id


def test_barcodes() -> None:
    assert tcga_patient("TCGA-05-4244-01Z") == "TCGA-05-4244"
    assert tcga_site("tcga-na-a4qv") == "NA"
    assert tcga_patient("TCGA-05-42445") is None
    assert tcga_site("other") is None
    assert spelling_key(" tcga-05-4244-01Z.svs ") == spelling_key("TCGA-05-4244")
    assert spelling_key("001") != spelling_key("1")


def test_the_room_needs_neither_torch_nor_pandas() -> None:
    code = "import sys, marble.cohorts; print(sorted({'torch', 'pandas', 'sklearn'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_class_of_too_few_patients_for_every_part_is_noted(tmp_path: Path) -> None:
    rows = "p0,s0,rare\np0,s1,rare\np0,s2,rare\n" + "".join(f"q{k},t{k},{'ab'[k % 2]}\n" for k in range(6))
    cohort = read_cohort(write(tmp_path, f"case_id,slide_id,label\n{rows}"))
    (note,) = cohort.notes
    assert note == "class 'rare' has 1 of 7 cases: not every part of a split can have one"
    assert f"note: {note}" in cohort.summary()


TWO_TASKS = "case_id,slide_id,label,age,time,event\np1,a,x,61,3,1\np2,b,y,48,5,0\n"


@pytest.mark.parametrize(
    ("choices", "unused"),
    [
        ({"task": "classification", "event_coding": "1=event"}, ["--event-coding"]),
        ({"label": "label", "target": "age", "task": "classification"}, ["--target"]),
        ({"task": "survival", "event_coding": "1=event", "label": "label"}, ["--label"]),
        ({"target": "age", "classes": ("x", "y"), "keep_as_class": ("none",)}, ["--classes", "--keep-as-class"]),
        ({"task": "classification", "drop": ("other",)}, ["--drop"]),
        ({"target": "age", "drop": ("other",)}, ["--drop"]),
        ({"task": "classification", "classes": ("x", "y"), "drop": ("other",)}, []),
        ({"task": "survival", "event_coding": "1=event", "time": "time", "event": "event"}, []),
    ],
)
def test_a_choice_for_another_task_is_said_to_change_nothing(
    tmp_path: Path, choices: dict[str, Any], unused: list[str]
) -> None:
    (tmp_path / "t.csv").write_text(TWO_TASKS)
    notes = read_cohort(tmp_path / "t.csv", **choices).notes
    assert [note.split()[0] for note in notes if " is not used" in note or " leaves nothing out" in note] == unused
