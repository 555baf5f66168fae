"""`Experiment`: an experiment file turned into a list of runs."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from marble import files, storage
from marble.bags.store import BagStore
from marble.cohorts.cohort import Cohort
from marble.cohorts.sites import site_report
from marble.cohorts.split_files import read_splits
from marble.cohorts.splits import PARTS, Split, holdout, kfold
from marble.cohorts.tables import read_cohort
from marble.errors import RunError, SpecError
from marble.experiment.fitting import check_fitting, task_of
from marble.experiment.folders import check_folders, folder_of, variants
from marble.experiment.leaks import leaks_between_parts
from marble.experiment.spec import SYNTHETIC, CohortSpec, ExperimentSpec, ModelSpec
from marble.experiment.stock import Stock
from marble.experiment.stores import find_store
from marble.models import (
    COMMON,
    MODELS,
    SMALL_BELOW,
    Recipe,
    check_option,
    model_class,
    model_options,
    small,
)
from marble.models.zoo.probe import ClosedForm
from marble.specs import canonical_json, unknown_choice
from marble.synthetic.cohort import KINDS, write_cohort
from marble.tasks.registry import task_class
from marble.training.job import CaseSpec, FitJob, TargetSpec, TaskSpec, TrainedBy
from marble.training.run import HeldOut, PlannedRun
from marble.training.trackers import require


@dataclass(frozen=True)
class Experiment:
    """An experiment file, and the folder its relative paths start from."""

    spec: ExperimentSpec
    name: str
    home: Path
    file: Path | None = None  # where it was read from

    @staticmethod
    def load(path: str | Path) -> Experiment:
        """Read and check an experiment file; every name and option in it is checked before anything runs."""
        path = Path(path)
        spec = ExperimentSpec.from_toml(path)
        models = _with_baselines(spec)
        keys = Counter(model.key for model in models)
        twice = [key for key, count in keys.items() if count > 1]
        if twice:
            raise SpecError(f"two models are called '{twice[0]}'", where=path, hint="Give one of them a `label`")
        check_folders(spec.name or path.stem, models, path)
        for model in models:
            if model.name not in MODELS:
                raise SpecError(unknown_choice("model", model.name, list(MODELS)), where=path)
            for key, value in (*model.options.items(), *((key, v) for key, vs in model.choose.items() for v in vs)):
                check_option(model.name, key, value, where=path)
        return Experiment(spec, spec.name or path.stem, path.resolve().parent, path)

    def cohort(self, out: Path) -> Cohort:
        """The patients; a synthetic cohort is made below `out` on first use."""
        spec = self.spec.cohort if isinstance(self.spec.cohort, CohortSpec) else CohortSpec(path=self.spec.cohort)
        if spec.path.startswith(SYNTHETIC):
            path, _ = self._synthetic(spec, out)
        else:
            path = self.home / spec.path
        options = {key: getattr(spec, key) for key in type(spec).model_fields if key not in ("path", "patients")}
        for key in ("slide_table", "pseudonyms"):
            if options[key] is not None:
                options[key] = self.home / options[key]
        return read_cohort(path, task=task_class(self.spec.task).target_kind, **options)

    def store(self, out: Path) -> BagStore:
        """The bags the experiment is about."""
        if self.spec.bags.store is None:
            spec = self.spec.cohort if isinstance(self.spec.cohort, CohortSpec) else CohortSpec(path=self.spec.cohort)
            if not spec.path.startswith(SYNTHETIC):
                raise SpecError("bags.store is missing", where=self.name, hint='Say `bags = { store = "bags/" }`')
            return self._synthetic(spec, out)[1]
        return find_store(self._at(self.spec.bags.store), self.spec.bags.magnifications, self.spec.bags.encoder)

    def _at(self, place: str) -> Path:
        """A path of the experiment file, which starts from the file's own folder; or a location on a storage."""
        found = storage.location(place)
        return found if storage.address(found) is not None else self.home / place

    def splits(self, cohort: Cohort) -> list[Split]:
        spec = self.spec.split
        if spec.scheme == "holdout":
            return list(holdout(cohort, repeats=spec.repeats or 5, seed=spec.seed, by_site=spec.by_site))
        if spec.scheme == "kfold":
            repeats = spec.repeats or 1
            return list(kfold(cohort, folds=spec.folds, repeats=repeats, seed=spec.seed, by_site=spec.by_site))
        if spec.files is None:
            raise SpecError('split.files is missing for scheme "files"', where=self.name)
        return list(
            read_splits(
                self.home / spec.files,
                cohort,
                val_share=spec.val_share,
                val_as_test=spec.val_as_test,
                drop_unknown=spec.drop_unknown,
            )
        )

    def stock(self, out: str | Path, cohort: Cohort | None = None) -> Stock:
        """The cohort's bags, each of them read once; one that is damaged is left out and named."""
        out = Path(out)
        return Stock.checked(cohort or self.cohort(out), self.store(out), out / self.name)

    def plan(
        self,
        out: str | Path,
        threads: int = 1,
        allow_drift: bool = False,
        device: str = "cpu",
        stock: Stock | None = None,
    ) -> list[PlannedRun]:
        """Every run of the experiment, model by model within each split, with the held-out patients' files."""
        require(self.spec.track)
        out = Path(out)
        cohort = self.cohort(out)
        stock = stock or self.stock(out, cohort)
        splits = self.splits(cohort)
        leaks = leaks_between_parts(splits, cohort, stock, allowed=self.spec.split.allow_leaks)
        runs = [
            self.plan_split(cohort, stock, split, out, threads, allow_drift, device=device, leaks=found)
            for split, found in zip(splits, leaks, strict=True)
        ]
        return list(itertools.chain.from_iterable(runs))

    def plan_split(
        self,
        cohort: Cohort,
        stock: Stock,
        split: Split,
        out: Path,
        threads: int,
        allow_drift: bool,
        required: Sequence[str] = PARTS,
        device: str = "cpu",
        leaks: Sequence[str] = (),
    ) -> list[PlannedRun]:
        """Every model on one split; no part of it that is `required` may be empty. `leaks` are told in every table."""
        parts = {part: _cases(cohort, set(getattr(split, part)), stock.slides) for part in PARTS}
        for part in required:
            if not parts[part]:
                hint = f"Look at the store with `marble verify {stock.store.root}`" if stock.damaged else None
                raise RunError(f"no {part} patient has a bag", where=f"{self.name}, repeat {split.repeat}", hint=hint)
        held_out = HeldOut(cases=tuple(parts["test"]), bags_sha256=_bags_hash(stock.store, parts["test"]))
        test = out / self.name / "held-out" / f"{split.repeat}.json"
        files.publish_json(test, held_out.model_dump(mode="json"))
        bags = _bags_hash(stock.store, [*parts["train"], *parts["val"]])
        planned = []
        # as JSON has it, without tuples: a planned run is compared with the record of a finished one
        sites = json.loads(canonical_json(asdict(site_report(cohort, split)))) if parts["test"] else {}
        for model in _with_baselines(self.spec):
            for variant, options in variants(model):
                job = self._job(model, options, cohort, stock.store, split, parts, bags, threads)
                about = {
                    "experiment": self.name,
                    "model": model.key,
                    "variant": variant,
                    "repeat": split.repeat,
                    "scheme": self.spec.split.scheme,
                    "slides": stock.counts,
                    "unit": self.spec.unit,
                    "scored_by": cohort.scored_by,
                    "recipe": self._why(model, job),
                    "sites": sites,
                    "paper": self.spec.paper.get(model.key, {}),
                } | ({"leaks": list(leaks)} if leaks else {})
                folder = out / self.name / folder_of(model, variant) / str(split.repeat)
                planned.append(
                    PlannedRun(
                        folder=storage.named(folder),
                        job=job,
                        test=storage.named(test),
                        about=about,
                        allow_drift=allow_drift,
                        track=self.spec.track,
                        device=device,
                    )
                )
        return planned

    def _job(
        self,
        model: ModelSpec,
        options: dict[str, Any],
        cohort: Cohort,
        store: BagStore,
        split: Split,
        parts: dict[str, list[CaseSpec]],
        bags: str,
        threads: int,
    ) -> FitJob:
        record = store.record(parts["train"][0].slides[0])
        if "levels" in model_options(model.name) and "levels" not in options:
            options = {**options, "levels": len(record.levels)}
        name, recipe, fitting = self._recipe(model, sum(len(case.slides) for case in parts["train"]))
        options = {**fitting, **options}
        task = TaskSpec(
            name=self.spec.task,
            classes=cohort.classes,
            decision=self.spec.decision,
            positive=self.spec.positive,
            class_loss=recipe.class_loss,
            side_label_smoothing=recipe.side_label_smoothing,
            class_weights=self.spec.train.class_weights,
            survival_loss=recipe.survival_loss,
            bins=self.spec.train.bins,
            alpha=self.spec.train.alpha,
            risk_set=recipe.risk_set,
            group=self.spec.train.group,
            regression_loss=self.spec.train.regression_loss,
        )
        asked = task_of(task, self.file)
        if asked.outputs == 1 and asked.class_names and "intercept" in model_options(model.name):
            options = {"intercept": True, **options}  # one logit of two classes says how common the second is
        # what does not fit the cohort's classes or the bags is refused now, not by every run
        check_fitting(model, options, record, asked, self.file)
        return FitJob(
            model=model.name,
            options=options,
            dim=record.levels[-1].dim,
            task=task,
            recipe=recipe,
            recipe_name=name,
            store=storage.named(store.root),
            bags_sha256=bags,
            train=tuple(parts["train"]),
            val=tuple(parts["val"]),
            split=split.fingerprint(),
            seed=self.spec.split.seed + split.repeat,
            orders=self.spec.train.orders,
            val_orders=self.spec.train.val_orders,
            order_tolerance=self.spec.train.order_tolerance,
            threads=threads,
        )

    def _recipe(self, model: ModelSpec, slides: int) -> tuple[TrainedBy, Recipe, dict[str, Any]]:
        """The recipe for so many training slides: its name, itself, and the options that the model gets with it."""
        kind, asked, changes = (
            model_class(model.name),
            model.recipe or self.spec.train.recipe,
            self.spec.train.changes(),
        )
        if model.standardise is not None:
            changes["standardise"] = model.standardise
        if issubclass(kind, ClosedForm):  # for losses that are convex, and of vectors it standardises itself
            return "solved", replace(COMMON, epochs=1, warmup=0), {}
        target = task_class(self.spec.task).target_kind
        if asked == "authors":
            recipe, options = kind.as_authors(target)
            own = {key: value for key, value in changes.items() if key == "standardise"}
            return asked, replace(recipe, **own), options
        if asked == "common" or (asked == "auto" and slides >= SMALL_BELOW):
            return "common", replace(COMMON, **changes), {}
        return "small", replace(small(slides, target), **changes), dict(kind.small_options)

    def _why(self, model: ModelSpec, job: FitJob) -> str:
        """Which recipe a run was trained by, and who says so."""
        if job.recipe_name == "solved":
            return "solved: ridge regression, the strength by inner cross-validation"
        if (model.recipe or self.spec.train.recipe) != "auto":
            return f"{job.recipe_name}: the experiment asks for it"
        slides = sum(len(case.slides) for case in job.train)
        than = f"fewer than {SMALL_BELOW}" if job.recipe_name == "small" else f"at least {SMALL_BELOW}"
        return f"{job.recipe_name}: {slides} training slides, {than}"

    def _synthetic(self, spec: CohortSpec, out: Path) -> tuple[Path, BagStore]:
        kind = spec.path.removeprefix(SYNTHETIC)
        for known in KINDS:
            if kind == known:
                return write_cohort(out / self.name / "cohort", known, spec.patients)
        raise SpecError(unknown_choice("synthetic cohort", kind, list(KINDS)), where=self.name)


def _with_baselines(spec: ExperimentSpec) -> tuple[ModelSpec, ...]:
    """The experiment's models, and the baselines that are not among them already."""
    have = {model.name for model in spec.models}
    return (*spec.models, *(ModelSpec(name=name) for name in spec.baselines if name not in have))


def _cases(cohort: Cohort, patients: set[str], have: set[str]) -> list[CaseSpec]:
    """The scored units of these patients, with those of their slides that have a bag."""
    cases = []
    for unit in cohort.units():
        slides = tuple(slide for slide in unit.slides if slide in have)
        if unit.case_id in patients and slides:
            cases.append(CaseSpec(case_id=unit.case_id, slides=slides, target=TargetSpec.of(unit.target)))
    return cases


def _bags_hash(store: BagStore, cases: Sequence[CaseSpec]) -> str:
    """One hash over all bags of these cases."""
    slides = sorted(slide for case in cases for slide in case.slides)
    return files.sha256_bytes(canonical_json([store.record(slide).bag_sha256 for slide in slides]))
