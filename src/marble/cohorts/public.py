"""The five public cohorts of the paper: where slides and labels are, and how their tables are read."""

from __future__ import annotations

from dataclasses import dataclass

from marble.cohorts.cohort import TaskName
from marble.errors import InputError
from marble.specs import unknown_choice

_GDC = "GDC Data Portal (portal.gdc.cancer.gov), project {}, data type 'Slide Image', diagnostic slides (DX)"
_SURVIVAL = (
    "survival_months and censorship (1 = censored), as in the tables published with MambaMIL and 2DMamba; "
    "or OS.time and OS of the TCGA Clinical Data Resource (Liu et al., Cell 2018, Table S1)"
)


@dataclass(frozen=True)
class PublicCohort:
    """Facts about one public cohort."""

    name: str
    title: str
    task: TaskName
    magnifications: tuple[float, ...]  # coarsest first, as in the paper
    slides: str
    labels: str
    columns: dict[str, str]  # what read_cohort needs to be told, if anything
    cases: int  # in the public table
    events: int | None = None
    caution: str = ""


PUBLIC: dict[str, PublicCohort] = {
    cohort.name: cohort
    for cohort in (
        PublicCohort(
            name="panda",
            title="PANDA: ISUP grade of prostate biopsies, 6 classes",
            task="classification",
            magnifications=(5, 20),
            slides="Kaggle, competition 'Prostate cANcer graDe Assessment (PANDA) Challenge', train_images",
            labels="train.csv of the same competition (image_id, data_provider, isup_grade, gleason_score)",
            columns={"slide": "image_id", "label": "isup_grade"},
            cases=10_616,
            caution="the table has no patient id: each slide counts as a patient",
        ),
        PublicCohort(
            name="tcga-nsclc",
            title="TCGA-NSCLC: adenocarcinoma (LUAD) against squamous cell carcinoma (LUSC) of the lung",
            task="classification",
            magnifications=(10, 40),
            slides=_GDC.format("TCGA-LUAD and TCGA-LUSC"),
            labels="the project of each slide; published as CLAM tables (case_id, slide_id, label)",
            columns={"label": "label"},
            cases=956,
            caution="published splits put slides of one patient on both sides: audit a split before use",
        ),
        PublicCohort(
            name="tcga-kirp",
            title="TCGA-KIRP: overall survival in papillary renal cell carcinoma",
            task="survival",
            magnifications=(10, 40),
            slides=_GDC.format("TCGA-KIRP"),
            labels=_SURVIVAL,
            columns={"time": "survival_months", "event": "censorship"},
            cases=261,
            events=41,
            caution="few events, so intervals are wide; published k-folds have no test set",
        ),
        PublicCohort(
            name="tcga-luad",
            title="TCGA-LUAD: overall survival in adenocarcinoma of the lung",
            task="survival",
            magnifications=(10, 40),
            slides=_GDC.format("TCGA-LUAD"),
            labels=_SURVIVAL,
            columns={"time": "survival_months", "event": "censorship"},
            cases=455,
            events=159,
            caution="published k-folds have no test set",
        ),
        PublicCohort(
            name="tcga-stad",
            title="TCGA-STAD: overall survival in adenocarcinoma of the stomach",
            task="survival",
            magnifications=(10, 40),
            slides=_GDC.format("TCGA-STAD"),
            labels=_SURVIVAL,
            columns={"time": "survival_months", "event": "censorship"},
            cases=363,
            events=145,
            caution="published k-folds have no test set",
        ),
    )
}


def public_cohort(name: str) -> PublicCohort:
    """The facts about a public cohort, or an error with the names there are."""
    if name not in PUBLIC:
        raise InputError(unknown_choice("public cohort", name, list(PUBLIC)))
    return PUBLIC[name]
