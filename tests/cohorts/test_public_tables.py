"""The tables and split files published with other systems, as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marble.cohorts import audit, holdout, kfold, read_cohort, read_splits
from marble.cohorts.audit import Audit
from marble.errors import SplitError, TableError
from marble.targets import SurvivalTime

#: file, options, cases, slides, events or class counts
COHORTS: list[tuple[str, dict[str, Any], int, int, int | dict[str, int]]] = [
    ("MambaMIL/dataset_csv/KIRP_processed.csv", {}, 261, 261, 41),
    ("MambaMIL/dataset_csv/LUAD_processed.csv", {}, 455, 455, 159),
    ("MambaMIL/dataset_csv/STAD_processed.csv", {}, 363, 363, 145),
    ("MambaMIL/dataset_csv/KIRC_processed.csv", {}, 498, 498, 169),
    ("MambaMIL/dataset_csv/UCEC_processed.csv", {}, 480, 539, 75),
    ("MambaMIL/dataset_csv/BLCA_processed.csv", {}, 373, 437, 169),
    ("MambaMIL/dataset_csv/BRCA_processed.csv", {}, 1023, 1023, 146),
    ("MambaMIL/dataset_csv/COADREAD_processed.csv", {}, 572, 572, 117),
    ("MambaMIL/dataset_csv/LUAD_LUSC.csv", {}, 956, 1053, {"LUAD": 478, "LUSC": 478}),
    (
        "MambaMIL/dataset_csv/BRACS.csv", {}, 545, 545,
        {"ADH": 48, "DCIS": 61, "FEA": 41, "IC": 132, "N": 43, "PB": 147, "UDH": 73},
    ),
    ("2DMamba/survival/KIRP.csv", {}, 261, 261, 41),
    ("2DMamba/survival/LUAD.csv", {}, 455, 455, 159),
    ("2DMamba/survival/STAD.csv", {}, 363, 363, 145),
    ("2DMamba/survival/KIRC.csv", {}, 498, 498, 169),
    ("2DMamba/survival/UCEC.csv", {}, 480, 539, 75),
    (
        "2DMamba/classification/PANDA.csv", {"case_is_slide": True}, 10616, 10616,
        {"0": 2892, "1": 2666, "2": 1343, "3": 1242, "4": 1249, "5": 1224},
    ),
    ("2DMamba/classification/BRACS.csv", {"case_is_slide": True}, 547, 547, {"AT": 89, "BT": 265, "MT": 193}),
    (
        "2DMamba/classification/DHMC.csv", {"case_is_slide": True}, 563, 563,
        {"Benign": 29, "Chromophobe": 23, "Clearcell": 344, "Oncocytoma": 66, "Papillary": 101},
    ),
    ("2DMamba/classification/TCGA-NSCLC-label.csv.zip", {}, 862, 958, 339),
    (
        "2DMamba/classification/TCGA-NSCLC-label.csv.zip", {"task": "classification"}, 862, 958,
        {"LUAD": 430, "LUSC": 432},
    ),
    (
        "2DMamba/classification/TCGA-BRCA-label.csv",
        {"label": "oncotree_code", "classes": ("IDC", "ILC"), "drop": ("other", "missing")}, 971, 1033,
        {"IDC": 773, "ILC": 198},
    ),
    ("SurvPath_STAD/tcga_stad.csv", {}, 319, 343, 120),
    ("SurvPath_STAD/datasets_csv/metadata/tcga_stad.csv", {}, 319, 343, 120),
    ("PORPOISE_splits/tcga_kirp_clinical.csv", {}, 260, 284, 40),
    ("PORPOISE_splits/tcga_luad_clinical.csv", {}, 453, 515, 158),
    ("PORPOISE_splits/tcga_stad_clinical.csv", {}, 349, 374, 140),
]  # fmt: skip

#: folder, splits, the cohort they belong to
FOLDS = [
    ("MambaMIL/splits/TCGA_KIRP_survival_kfold", "MambaMIL/dataset_csv/KIRP_processed.csv"),
    ("MambaMIL/splits/TCGA_LUAD_survival_kfold", "MambaMIL/dataset_csv/LUAD_processed.csv"),
    ("MambaMIL/splits/TCGA_STAD_survival_kfold", "MambaMIL/dataset_csv/STAD_processed.csv"),
    ("2DMamba/survival/TCGA_KIRP_survival_kfold", "2DMamba/survival/KIRP.csv"),
    ("2DMamba/survival/TCGA_LUAD_survival_kfold", "2DMamba/survival/LUAD.csv"),
    ("2DMamba/survival/TCGA_STAD_survival_kfold", "2DMamba/survival/STAD.csv"),
    ("2DMamba/survival/TCGA_KIRC_survival_kfold", "2DMamba/survival/KIRC.csv"),
    ("PORPOISE_splits/tcga_kirp", "PORPOISE_splits/tcga_kirp_clinical.csv"),
    ("PORPOISE_splits/tcga_luad", "PORPOISE_splits/tcga_luad_clinical.csv"),
    ("PORPOISE_splits/tcga_stad", "PORPOISE_splits/tcga_stad_clinical.csv"),
    ("SurvPath_STAD", "SurvPath_STAD/tcga_stad.csv"),
    ("SurvPath_STAD/splits/5foldcv/tcga_stad", "SurvPath_STAD/tcga_stad.csv"),
]


@pytest.fixture
def tables(shared_data: Path) -> Path:
    return shared_data / "tables"


@pytest.mark.parametrize(("name", "options", "cases", "slides", "targets"), COHORTS)
def test_published_tables_load_as_they_are(
    tables: Path, name: str, options: dict[str, Any], cases: int, slides: int, targets: int | dict[str, int]
) -> None:
    cohort = read_cohort(tables / name, **options)
    assert (len(cohort.cases), len(cohort.slides())) == (cases, slides)
    found = [case.target for case in cohort.cases]
    if isinstance(targets, int):
        assert sum(target.event for target in found if isinstance(target, SurvivalTime)) == targets
        assert f"events: {targets}, censored: {cases - targets}" in cohort.summary()
    else:
        assert {label: found.count(label) for label in cohort.classes} == targets


def test_no_published_table_is_forgotten(tables: Path) -> None:
    known = {name for name, *_ in COHORTS}
    for path in tables.rglob("*.csv*"):
        name = path.relative_to(tables).as_posix()
        if name not in known and not path.name.endswith(("-split.csv", "_descriptor.csv")):
            assert path.name.startswith("splits_") or "clinical" in name


def test_clinical_tables_without_slides_join_a_slide_table(tables: Path) -> None:
    folder = tables / "SurvPath_STAD"
    for clinical in ("tcga_stad_clinical.csv", "datasets_csv/clinical_data/tcga_stad_clinical.csv"):
        with pytest.raises(TableError, match="no slides"):
            read_cohort(folder / clinical, label="grade")
        cohort = read_cohort(folder / clinical, label="grade", slide_table=folder / "tcga_stad.csv", drop=("missing",))
        used = len(cohort.cases) + len({item.name for item in cohort.excluded if len(item.name) == 12})
        assert used == 478
        assert set(cohort.classes) <= {"G1", "G2", "G3", "GX"}


def test_bags_labels(shared_data: Path) -> None:
    atlas = read_cohort(shared_data / "bags/atlas/labels.csv", label="malignant")
    assert (len(atlas.cases), len(atlas.slides())) == (40, 50)
    glas = shared_data / "bags/glas/labels.csv"
    with pytest.raises(TableError, match="scored_by"):
        read_cohort(glas, label="malignant")
    cohort = read_cohort(glas, label="malignant", scored_by="slide")
    assert (len(cohort.cases), len(cohort.units())) == (16, 165)
    assert sum(unit.target == "1" for unit in cohort.units()) == 91


def test_public_nsclc_splits_share_patients_between_train_and_test(tables: Path) -> None:
    ten = audit(tables / "MambaMIL/splits/LUAD_LUSC_100")
    assert [len(split.shared("train", "test")) for split in ten.splits] == [9, 6, 7, 13, 13, 6, 11, 12, 8, 9]
    assert ten.leaks
    text = "\n".join(ten.lines())
    for split in ten.splits:
        assert all(patient in text for patient in split.shared("train", "test"))
    one = audit(tables / "2DMamba/classification/TCGA-NSCLC-split.csv")
    assert [len(split.shared("train", "test")) for split in one.splits] == [7]
    with pytest.raises(SplitError, match=r"patient 'TCGA-.*' is in train and in val"):
        read_splits(tables / "2DMamba/classification/TCGA-NSCLC-split.csv")


def test_both_forms_of_a_clam_split_and_the_cohort_agree(tables: Path) -> None:
    folder = tables / "MambaMIL/splits/LUAD_LUSC_100"
    cohort = read_cohort(tables / "MambaMIL/dataset_csv/LUAD_LUSC.csv")

    def shared(result: Audit) -> list[tuple[str, ...]]:
        return [split.shared("train", "test") for split in result.splits]

    for i in range(10):
        listed = shared(audit(folder / f"splits_{i}.csv"))
        assert listed == shared(audit(folder / f"splits_{i}_bool.csv"))
        assert listed == shared(audit(folder / f"splits_{i}.csv", cohort))
        with pytest.raises(SplitError, match="counts classes"):
            audit(folder / f"splits_{i}_descriptor.csv")


@pytest.mark.parametrize(("folder", "table"), FOLDS)
def test_public_survival_folds_have_no_test_set(tables: Path, folder: str, table: str) -> None:
    cohort = read_cohort(tables / table)
    result = audit(tables / folder, cohort)
    assert len(result.splits) == 5
    assert not result.leaks
    assert "\n".join(result.lines()).count("fault: no test set") == 5
    with pytest.raises(SplitError, match="test part is empty"):
        read_splits(tables / folder, cohort)
    for split in read_splits(tables / folder, cohort, val_as_test=True, val_share=0.1):
        assert split.test
        assert split.val


def test_public_ucec_folds_share_patients_between_train_and_val(tables: Path) -> None:
    result = audit(tables / "2DMamba/survival/TCGA_UCEC_survival_kfold")
    assert [len(split.shared("train", "val")) for split in result.splits] == [15, 18, 15, 10, 18]


def test_other_public_splits(tables: Path) -> None:
    brca = audit(tables / "2DMamba/classification/TCGA-BRCA-split.csv")
    assert len(brca.splits[0].shared("train", "test")) == 12
    for name in ("BRACS.csv", "DHMC.csv"):
        path = tables / "2DMamba/classification" / name
        assert not audit(path).leaks
        assert read_splits(path, read_cohort(path, case_is_slide=True))[0].test


def test_our_splits_of_the_public_cohorts_are_sound(tables: Path) -> None:
    cohort = read_cohort(tables / "MambaMIL/dataset_csv/LUAD_LUSC.csv")
    for splits in (holdout(cohort), kfold(cohort), holdout(cohort, by_site=True), kfold(cohort, by_site=True)):
        result = audit(splits, cohort)
        assert not result.leaks
        assert not result.faults
    assert "note: 0 of 68 sites" in "\n".join(audit(holdout(cohort, by_site=True), cohort).lines())
