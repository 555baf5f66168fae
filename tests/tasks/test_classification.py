"""The classification task: losses, weights, what is stored."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from marble.errors import InputError, NonFiniteError, RunError, SpecError
from marble.targets import SurvivalTime
from marble.tasks.classification import Classification
from marble.tasks.cross_entropy import ClassLoss
from marble.tasks.metric import Undefined

CLASSES = ("a", "b", "c")
LABELS = {"s1": "a", "s2": "a", "s3": "a", "s4": "b", "s5": "c", "s6": "c"}
PATIENTS = {slide: f"p{slide}" for slide in LABELS}


def by_hand(logits: torch.Tensor, y: int, loss: ClassLoss) -> float:
    """The three losses in numpy, from their formulas."""
    x = logits.detach().double().numpy()
    softmax = np.exp(x) / np.exp(x).sum()
    if loss == "cross-entropy":
        return float(-np.log(softmax[y]))
    if loss == "cross-entropy-of-probabilities":
        return float(-softmax[y] + np.log(np.exp(softmax).sum()))
    sigmoid = 1 / (1 + np.exp(-x))
    return float(np.mean([-np.log(s if k == y else 1 - s) for k, s in enumerate(sigmoid)]))


@pytest.mark.parametrize("loss", ["cross-entropy", "multi-label-bce", "cross-entropy-of-probabilities"])
def test_losses_equal_their_formulas(loss: ClassLoss) -> None:
    generator = torch.Generator().manual_seed(0)
    criterion = Classification(CLASSES, loss=loss).criterion(LABELS, PATIENTS)
    total = []
    for slide, label in LABELS.items():
        logits = torch.randn(3, dtype=torch.float64, generator=generator)
        expected = by_hand(logits, CLASSES.index(label), loss)
        assert float(criterion.loss(slide, logits)) == pytest.approx(expected, abs=1e-12)
        total.append((label, logits, expected))
    validation = criterion.validation_loss([label for label, _, _ in total], torch.stack([x for _, x, _ in total]))
    assert validation == pytest.approx(np.mean([value for _, _, value in total]), abs=1e-12)


def test_balanced_weights_are_inverse_frequencies_with_mean_one() -> None:
    criterion = Classification(CLASSES, class_weights="balanced").criterion(LABELS, PATIENTS)
    assert criterion.weights.tolist() == pytest.approx([6 / 9, 6 / 3, 6 / 6])
    assert sum(float(criterion.weights[CLASSES.index(label)]) for label in LABELS.values()) / 6 == pytest.approx(1)


def test_a_class_weight_scales_the_gradient_of_one_slide() -> None:
    """With torch's own `weight=` and mean reduction the weight of a single slide cancels out."""
    plain = Classification(CLASSES).criterion(LABELS, PATIENTS)
    weighted = Classification(CLASSES, class_weights=(2.0, 3.0, 5.0)).criterion(LABELS, PATIENTS)
    for slide, label in LABELS.items():
        x = torch.tensor([0.3, -1.0, 2.0], requires_grad=True)
        (a,) = torch.autograd.grad(plain.loss(slide, x), x)
        (b,) = torch.autograd.grad(weighted.loss(slide, x), x)
        assert torch.allclose(b, a * (2.0, 3.0, 5.0)[CLASSES.index(label)])


def test_balanced_weights_need_every_class() -> None:
    with pytest.raises(InputError, match="no training slide of class 'c'"):
        Classification(CLASSES, class_weights="balanced").criterion({"s1": "a", "s2": "b"}, PATIENTS)


def test_readout_is_a_distribution() -> None:
    task = Classification(CLASSES)
    logits = torch.tensor([1.0, -2.0, 0.5])
    stored = task.readout(logits)
    assert tuple(stored) == task.columns == ("p_a", "p_b", "p_c")
    assert list(stored.values()) == pytest.approx(functional.softmax(logits.double(), dim=0).tolist(), abs=1e-15)


def test_readout_of_yes_or_no_questions_is_calibrated() -> None:
    """Perfect answers to 'is it class k?' are logit(P(k)); the readout must give P back."""
    truth = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    task = Classification(CLASSES, loss="multi-label-bce")
    assert list(task.readout(torch.logit(truth)).values()) == pytest.approx(truth.tolist(), abs=1e-12)
    far = task.readout(torch.tensor([-800.0, -801.0, -2000.0]))
    assert far["p_a"] == pytest.approx(1 / (1 + np.exp(-1.0)))


def test_bad_logits_are_refused() -> None:
    task = Classification(CLASSES)
    with pytest.raises(NonFiniteError):
        task.readout(torch.tensor([0.0, torch.nan, 1.0]))
    with pytest.raises(InputError, match=r"\(3,\)"):
        task.readout(torch.zeros(2))
    criterion = task.criterion(LABELS, PATIENTS)
    with pytest.raises(InputError, match=r"\(1, 3\)"):
        criterion.loss("s1", torch.zeros(2))
    with pytest.raises(InputError, match="s9: not one of the training slides"):
        criterion.loss("s9", torch.zeros(3))


def test_bad_targets_are_refused_by_name() -> None:
    task = Classification(("normal", "tumour"))
    with pytest.raises(InputError, match="s1: unknown class 'tumor'; did you mean 'tumour'"):
        task.criterion({"s1": "tumor"}, {"s1": "p"})
    with pytest.raises(InputError, match="class name"):
        task.criterion({"s1": SurvivalTime(1.0, True)}, {"s1": "p"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": ("a",)}, "two or more"),
        ({"classes": ("a", "a")}, "different"),
        ({"classes": CLASSES, "loss": "mse"}, "unknown loss"),
        ({"classes": CLASSES, "class_weights": "balance"}, "did you mean 'balanced'"),
        ({"classes": CLASSES, "class_weights": (1.0, 2.0)}, "3 positive numbers"),
        ({"classes": CLASSES, "class_weights": (1.0, 2.0, -1.0)}, "3 positive numbers"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Classification(**settings)  # type: ignore[arg-type]


def test_it_keeps_no_state() -> None:
    criterion = Classification(CLASSES).criterion(LABELS, PATIENTS)
    assert not criterion.needs_priming
    criterion.prime("s1", torch.zeros(3))
    assert criterion.state() == {}
    criterion.load_state({})
    with pytest.raises(RunError, match="keeps no state"):
        criterion.load_state({"bank.main": torch.zeros(1)})
    assert criterion.validation_loss([], torch.zeros(0, 3)) == Undefined("no cases")
    assert Classification(CLASSES, class_weights=None).criterion(LABELS, PATIENTS).weights.tolist() == [1, 1, 1]
