"""Cox loss, bank and group against a brute-force sum over risk sets."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from marble.errors import InputError, NonFiniteError, RunError
from marble.targets import SurvivalTime, Target
from marble.tasks.cox import CoxBank, CoxGroup, RiskSets, breslow_loss
from marble.tasks.metric import Undefined
from tests.tasks.cohorts_at_random import Cohort, cohorts


def brute_force(risk: Tensor, time: Tensor, event: Tensor) -> Tensor:
    """The definition, one event at a time."""
    return sum(
        (torch.logsumexp(risk[time >= time[i]], 0) - risk[i] for i in range(len(risk)) if event[i]),
        start=risk.new_zeros(()),
    )


def has_gradient(cohort: Cohort) -> bool:
    return any(e and (cohort.time >= t).sum() > 1 for t, e in zip(cohort.time, cohort.event, strict=True))


def test_equals_brute_force_in_any_order(record_property: Callable[[str, object], None]) -> None:
    record_property("cases", 1000)
    rng = np.random.default_rng(0)
    seen = 0
    for cohort in cohorts(1000, seed=1, least=1):
        risk, time, event = cohort.tensors()
        if not has_gradient(cohort):
            with pytest.raises(InputError, match="bank"):
                breslow_loss(risk, time, event)
            continue
        seen += 1
        x, y = risk.clone().requires_grad_(), risk.clone().requires_grad_()
        loss, expected = breslow_loss(x, time, event), brute_force(y, time, event)
        (ours,), (theirs,) = torch.autograd.grad(loss, x), torch.autograd.grad(expected, y)
        assert abs(loss.item() - expected.item()) <= 1e-10
        assert torch.all((ours - theirs).abs() <= 1e-10)
        rows = torch.from_numpy(rng.permutation(len(risk)))
        assert abs(breslow_loss(risk[rows], time[rows], event[rows]).item() - expected.item()) <= 1e-10
    assert seen > 500


def test_naive_accumulation_over_ties_would_be_wrong() -> None:
    """The trap: a running sum over sorted times splits ties by row order."""
    risk = torch.tensor([0.5, -0.3, 1.2, 0.1], dtype=torch.float64)
    time, event = torch.tensor([2.0, 2.0, 2.0, 5.0]), torch.tensor([True, True, False, True])
    values = {
        breslow_loss(risk[list(p)], time[list(p)], event[list(p)]).item() for p in itertools.permutations(range(4))
    }
    everyone = torch.logsumexp(risk, 0)
    assert max(values) - min(values) <= 1e-12
    assert max(values) == pytest.approx(float(2 * everyone - risk[0] - risk[1]), abs=1e-12)


@pytest.mark.parametrize("size", [800.0, -800.0])
def test_risks_that_overflow_an_exponential(size: float) -> None:
    risk = torch.tensor([size, 0.0, -size, size], dtype=torch.float64, requires_grad=True)
    time, event = torch.tensor([1.0, 2.0, 2.0, 3.0]), torch.tensor([True, True, True, False])
    loss = breslow_loss(risk, time, event)
    (gradient,) = torch.autograd.grad(loss, risk)
    assert abs(loss.item() - brute_force(risk.detach(), time, event).item()) <= 1e-10
    assert torch.isfinite(gradient).all()
    slopes = [RiskSets(time, event).loss_and_slope(risk.detach(), k)[1] for k in range(4)]
    assert gradient.tolist() == pytest.approx(slopes, abs=1e-10)


def test_any_comparable_pair_gives_a_gradient() -> None:
    for cohort in cohorts(300, seed=2):
        risk, time, event = cohort.tensors()
        comparable = any(e and (cohort.time > t).any() for t, e in zip(cohort.time, cohort.event, strict=True))
        if comparable and risk.abs().max() < 10:
            x = risk.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(breslow_loss(x, time, event), x)
            assert gradient.abs().max() > 1e-6


@pytest.mark.parametrize(
    ("time", "event", "message"),
    [
        ([3.0], [True], "batch-of-one Cox has zero gradient"),
        ([3.0, 4.0], [False, False], "no event among 2"),
        ([3.0, 4.0], [False, True], "no other patient at risk"),
    ],
)
def test_degenerate_batches_are_refused(time: list[float], event: list[bool], message: str) -> None:
    with pytest.raises(InputError, match=message):
        breslow_loss(torch.zeros(len(time)), torch.tensor(time), torch.tensor(event))


def test_bad_numbers_are_refused() -> None:
    time, event = torch.tensor([1.0, 2.0]), torch.tensor([True, False])
    with pytest.raises(NonFiniteError):
        breslow_loss(torch.tensor([0.0, torch.nan]), time, event)
    with pytest.raises(NonFiniteError):
        breslow_loss(torch.zeros(2), torch.tensor([1.0, torch.inf]), event)
    with pytest.raises(InputError, match="one length"):
        breslow_loss(torch.zeros(3), time, event)


# ---- the bank ------------------------------------------------------------------------------------------------------


def slides_of(cohort: Cohort, rng: np.random.Generator) -> tuple[dict[str, Target], dict[str, str]]:
    """One to three slides for every patient."""
    targets: dict[str, Target] = {}
    patients: dict[str, str] = {}
    for k, (time, event) in enumerate(zip(cohort.time, cohort.event, strict=True)):
        for s in range(int(rng.integers(1, 4))):
            targets[f"p{k}-s{s}"] = SurvivalTime(float(time), bool(event))
            patients[f"p{k}-s{s}"] = f"p{k}"
    return targets, patients


def test_gradients_of_the_bank_sum_to_the_gradient_of_the_cohort() -> None:
    """Frozen weights, a linear model, tied times, patients with several slides."""
    rng = np.random.default_rng(3)
    checked = 0
    for cohort in cohorts(60, seed=4):
        if not has_gradient(cohort):
            continue
        checked += 1
        targets, patients = slides_of(cohort, rng)
        slides = list(targets)
        features = {slide: torch.from_numpy(rng.normal(size=5)) for slide in slides}
        weight = torch.from_numpy(rng.normal(size=(1, 5))).requires_grad_()

        bank = CoxBank(targets, patients)
        assert bank.needs_priming
        with torch.no_grad():
            for slide in slides:
                bank.prime(slide, weight @ features[slide])
        total = torch.zeros_like(weight)
        values = []
        for slide in rng.permutation(slides):
            loss = bank.loss(slide, weight @ features[slide])
            values.append(loss.item())
            total += torch.autograd.grad(loss, weight)[0]

        means = [
            torch.stack([weight @ features[s] for s in slides if patients[s] == f"p{k}"]).mean()
            for k in range(len(cohort.time))
        ]
        full = brute_force(torch.stack(means), *cohort.tensors()[1:])
        assert (total - torch.autograd.grad(full, weight)[0]).abs().max() <= 1e-10
        assert max(abs(value - full.item()) for value in values) <= 1e-10
    assert checked > 30


SMALL: dict[str, Target] = {"a": SurvivalTime(1.0, True), "b": SurvivalTime(2.0, True), "c": SurvivalTime(3.0, False)}
OWN = {"a": "A", "b": "B", "c": "C"}


def primed(streams: tuple[str, ...] = ("main",)) -> CoxBank:
    bank = CoxBank(SMALL, OWN)
    for stream in streams:
        for k, slide in enumerate(SMALL):
            bank.prime(slide, torch.tensor([float(k)]), stream)
    return bank


def test_a_step_uses_the_new_risk_of_its_slide_and_the_latest_of_the_others() -> None:
    bank = primed()
    bank.loss("b", torch.tensor([7.0]))
    x = torch.tensor([-1.0], requires_grad=True)
    (slope,) = torch.autograd.grad(bank.loss("a", x), x)
    risk = torch.tensor([-1.0, 7.0, 2.0], dtype=torch.float64, requires_grad=True)
    full = brute_force(risk, torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, True, False]))
    assert slope.item() == pytest.approx(torch.autograd.grad(full, risk)[0][0].item(), abs=1e-6)


def test_streams_do_not_mix() -> None:
    bank = primed(("main", "instance"))
    before = bank.state()["bank.instance"]
    bank.loss("a", torch.tensor([5.0]))
    assert torch.equal(bank.state()["bank.instance"], before)
    assert not torch.equal(bank.state()["bank.main"], before)


def test_an_unprimed_bank_says_what_to_do() -> None:
    bank = CoxBank(SMALL, OWN)
    bank.prime("a", torch.zeros(1))
    with pytest.raises(InputError, match=r"c: 1 of 3 training slides .* Call prime\(\)"):
        bank.loss("b", torch.zeros(1))
    with pytest.raises(InputError, match="stream 'side'"):
        primed().loss("b", torch.zeros(1), "side")


def test_a_bank_restored_goes_on_bitwise() -> None:
    bank = primed()
    bank.loss("b", torch.tensor([0.3], dtype=torch.float64))
    restored = CoxBank(dict(reversed(SMALL.items())), OWN)  # the order of the mapping does not matter
    restored.load_state(bank.state())
    for slide in ("a", "c", "b"):
        x, y = (torch.tensor([0.1], dtype=torch.float64, requires_grad=True) for _ in range(2))
        ours, theirs = bank.loss(slide, x), restored.loss(slide, y)
        assert ours.item() == theirs.item()
        assert torch.equal(torch.autograd.grad(ours, x)[0], torch.autograd.grad(theirs, y)[0])


def test_a_state_is_a_copy() -> None:
    bank = primed()
    state = bank.state()
    kept = {key: value.clone() for key, value in state.items()}
    bank.loss("a", torch.tensor([9.0]))
    assert all(torch.equal(state[key], kept[key]) for key in kept)


@pytest.mark.parametrize("state", [{"bank.main": torch.zeros(4)}, {"edges": torch.zeros(3)}])
def test_the_bank_of_another_cohort_is_refused(state: dict[str, Tensor]) -> None:
    with pytest.raises(RunError, match="3 training slides"):
        primed().load_state(state)


def test_nan_never_enters_the_bank() -> None:
    bank = primed()
    with pytest.raises(NonFiniteError, match=r"^b: risk is nan"):
        bank.loss("b", torch.tensor([torch.nan]))
    assert torch.isfinite(bank.state()["bank.main"]).all()


def test_bad_cohorts_are_refused() -> None:
    with pytest.raises(InputError, match="batch-of-one"):
        CoxBank({"a": SurvivalTime(1.0, True)}, OWN)
    with pytest.raises(InputError, match="no event"):
        CoxBank({"a": SurvivalTime(1.0, False), "b": SurvivalTime(2.0, False)}, OWN)
    with pytest.raises(InputError, match="b: slides of patient A have different outcomes"):
        CoxBank(SMALL, {"a": "A", "b": "A", "c": "C"})
    with pytest.raises(InputError, match="b: the slide has a target but no patient"):
        CoxBank(SMALL, {"a": "A"})
    with pytest.raises(InputError, match="time and an event"):
        CoxBank({"a": "tumour", "b": "normal"}, OWN)
    with pytest.raises(InputError, match="z: not one of the training slides"):
        primed().loss("z", torch.zeros(1))
    with pytest.raises(InputError, match="a: Cox needs one output"):
        primed().loss("a", torch.zeros(2))


# ---- the group -----------------------------------------------------------------------------------------------------


def test_a_group_averages_slides_of_one_patient() -> None:
    targets = {**SMALL, "a2": SurvivalTime(1.0, True)}
    group = CoxGroup(targets, {**OWN, "a2": "A"})
    logits = torch.tensor([[0.5], [1.0], [-0.5], [0.1]], dtype=torch.float64, requires_grad=True)
    loss = group.loss_of_group(["a", "b", "a2", "c"], logits)
    risk = torch.stack([(logits[0, 0] + logits[2, 0]) / 2, logits[1, 0], logits[3, 0]])
    expected = brute_force(risk, torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, True, False]))
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)
    ours, theirs = torch.autograd.grad(loss, logits)[0], torch.autograd.grad(expected, logits)[0]
    assert (ours - theirs).abs().max() <= 1e-12


def test_a_group_of_one_is_refused() -> None:
    group = CoxGroup(SMALL, OWN)
    with pytest.raises(InputError, match=r'batch-of-one Cox has zero gradient.*risk_set = "bank"'):
        group.loss("a", torch.zeros(1))
    assert not group.comparable(["a"])
    assert not group.comparable(["b", "a"][:1])
    assert group.comparable(["a", "b"])
    with pytest.raises(InputError, match=r"\(2, 1\)"):
        group.loss_of_group(["a", "b"], torch.zeros(2))


# ---- held-out cases ------------------------------------------------------------------------------------------------


def test_validation_loss_is_per_event() -> None:
    logits = torch.tensor([[0.5], [1.0], [-0.5]], dtype=torch.float64)
    expected = brute_force(logits[:, 0], torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, True, False])) / 2
    for criterion in (primed(), CoxGroup(SMALL, OWN)):
        assert criterion.validation_loss(list(SMALL.values()), logits) == pytest.approx(expected.item(), abs=1e-12)
        assert isinstance(criterion.validation_loss([SurvivalTime(1.0, False)] * 2, torch.zeros(2, 1)), Undefined)
        with pytest.raises(NonFiniteError):
            criterion.validation_loss(list(SMALL.values()), logits * torch.nan)
        with pytest.raises(InputError, match=r"\(3, 1\)"):
            criterion.validation_loss(list(SMALL.values()), torch.zeros(3, 2))


def test_one_slide_per_step_learns_a_planted_risk() -> None:
    from marble.tasks.survival_metrics import harrell_c

    rng = np.random.default_rng(5)
    x = rng.normal(size=(160, 6))
    time = rng.exponential(np.exp(-1.5 * x[:, 0]))
    event = rng.random(160) < 0.6
    features = torch.from_numpy(x)
    targets: dict[str, Target] = {f"s{k}": SurvivalTime(float(time[k]), bool(event[k])) for k in range(80)}
    bank = CoxBank(targets, {slide: slide for slide in targets})
    weight = torch.zeros(1, 6, dtype=torch.float64, requires_grad=True)
    for k in range(80):
        bank.prime(f"s{k}", (weight @ features[k]).detach())
    for k in np.concatenate([rng.permutation(80) for _ in range(5)]):
        (gradient,) = torch.autograd.grad(bank.loss(f"s{k}", weight @ features[k]), weight)
        with torch.no_grad():
            weight -= 0.02 * gradient
    held_out = (features[80:] @ weight[0]).detach().numpy()
    found = harrell_c(held_out, time[80:], event[80:])
    assert isinstance(found, float)
    assert found >= 0.75
