"""Several networks of one fit: each is the fit of its seed, together they say the mean, and a stopped one goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from marble import files
from marble.attribution.maps import explain
from marble.bags.store import BagStore
from marble.models.committee import Committee
from marble.models.inference import infer
from marble.prediction import Predictor
from marble.reports.collect import collect
from marble.reports.compare import compare
from marble.reports.tables import table_markdown
from marble.training.committee import MEMBERS, SEEDS_APART, member_job
from marble.training.fit import fit
from marble.training.job import FitJob
from marble.training.loop import TrainingLoop
from marble.training.routing import calibrate
from marble.training.run import execute
from marble.training.run_folder import RunFolder
from tests.training.jobs import plan

MODEL = '[{ name = "marble", project = 8, d_state = 8, mixer = "set" }]'
SMALL = ', recipe = "small"'


def job_of(folder: Path, train: str, kind: str = "cross-scale", model: str = MODEL) -> FitJob:
    return plan(folder, kind, model, patients=40, epochs=2, train=train)[0].job


@pytest.mark.parametrize("kind", ["cross-scale", "survival", "quantity"])
def test_members_are_the_fits_of_their_seeds_and_say_their_mean(tmp_path: Path, kind: str) -> None:
    job = job_of(tmp_path, SMALL + ", members = 3, share_folds = 0", kind)
    committee = fit(job, tmp_path / "fit")
    assert isinstance(committee, Committee)
    assert not (tmp_path / "fit" / MEMBERS).exists()
    alone = job.model_copy(update={"recipe": replace(job.recipe, members=1)})
    first = fit(alone, tmp_path / "first")
    assert torch.equal(first.get_parameter("head.weight"), committee.first.get_parameter("head.weight"))
    store = BagStore(job.store)
    for case in job.val[:4]:
        bag = store.load(case.slides[0])
        said = []
        for number in range(3):
            member = fit(member_job(job, number), tmp_path / str(number))
            said.append(infer(member, bag))
        together = infer(committee, bag)
        mean = torch.stack([one.logits.double() for one in said]).mean(0)
        torch.testing.assert_close(together.logits.double(), mean, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(together.attention, torch.stack([one.attention for one in said]).mean(0))
        assert len({float(one.logits[0]) for one in said}) == 3
    assert committee.parameter_count() == 3 * first.parameter_count()
    done = files.read_json(tmp_path / "fit" / "fit.json")
    assert (done["best_epoch"], done["epochs"]) == (2, 2)
    assert (tmp_path / "fit" / "history.csv").read_text().splitlines()[1].startswith("2,")


def test_members_differ_in_their_seed_alone(tmp_path: Path) -> None:
    job = job_of(tmp_path, SMALL + ", members = 2")
    jobs = [member_job(job, number) for number in range(2)]
    assert jobs[1].seed - jobs[0].seed == SEEDS_APART
    assert jobs[0].model_copy(update={"seed": jobs[1].seed}) == jobs[1]
    assert (jobs[0].recipe.members, jobs[0].recipe.share_folds) == (1, 0)


def test_the_share_is_of_all_members_together(tmp_path: Path) -> None:
    job = job_of(tmp_path, SMALL + ", members = 2, share_folds = 3", "burden")
    committee = fit(job, tmp_path / "fit")
    assert isinstance(committee, Committee)
    notes = files.read_json(tmp_path / "fit" / "fit.json")["notes"]
    assert notes[0] == "the mean of 2 networks that differ in their seed"
    term = committee.linear_term
    share, weight, bias = term.share, term.weight, term.bias
    assert share is not None
    assert weight is not None
    assert bias is not None
    assert f"share of the model beside it {float(share):g}, chosen by 3 inner folds of training patients" in notes
    bag = BagStore(job.store).load(job.val[0].slides[0])
    networks = [member.eval().forward(bag).logits for member in committee.each()]
    v = torch.cat([level.features.mean(dim=0) for level in bag.levels])
    by_hand = share * torch.stack(networks).mean(0) + weight @ v + bias
    torch.testing.assert_close(committee.eval()(bag).logits, by_hand, rtol=1e-4, atol=1e-5)


def test_a_stopped_fit_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(tmp_path, SMALL + ", members = 2, share_folds = 2", "burden")
    fit(job, tmp_path / "whole")
    whole = (tmp_path / "whole" / "model.safetensors").read_bytes()
    epochs = TrainingLoop._train_epoch
    for stop in (2, 6, 11):  # of eight inner epochs and four of its members
        seen = 0

        def stopping(loop: TrainingLoop, at: int = stop) -> float:
            nonlocal seen
            seen += 1
            if seen == at:
                raise KeyboardInterrupt
            return epochs(loop)

        monkeypatch.setattr(TrainingLoop, "_train_epoch", stopping)
        with pytest.raises(KeyboardInterrupt):
            fit(job, tmp_path / str(stop))
        monkeypatch.setattr(TrainingLoop, "_train_epoch", epochs)
        fit(job, tmp_path / str(stop))
        assert (tmp_path / str(stop) / "model.safetensors").read_bytes() == whole


def test_a_run_of_several_networks_is_used_like_any_other(tmp_path: Path) -> None:
    (planned,) = plan(tmp_path, "cross-scale", MODEL, patients=40, epochs=2, train=SMALL + ", members = 2")[:1]
    record = execute(planned)
    assert record["model"]["members"] == 2
    results = collect(tmp_path / "out")
    assert "small, standardised, linear term, 2 networks" in table_markdown(compare(results))
    run = Predictor(planned.folder)
    store = BagStore(planned.job.store)
    bag = store.load(planned.job.val[0].slides[0])
    stored = results.models[0].repeats[0].parts["val"]
    place = stored.patients.index(planned.job.val[0].case_id)
    assert run.answer(bag).readout["p_positive"] == pytest.approx(float(stored.readouts["p_positive"][place]), abs=1e-9)
    for mode in ("attention", "gradient", "occlusion"):
        assert explain(run, bag, mode).maps
    routing = calibrate(RunFolder.open(planned.folder), store, tolerance=0.1)
    assert 0 < routing["budget"] <= 1
    assert Predictor(planned.folder, routed=True, budget=0.5).answer(bag).readout


def test_by_default_there_is_one(tmp_path: Path) -> None:
    assert job_of(tmp_path, SMALL).recipe.members == 1
