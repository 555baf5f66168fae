"""Golden cases of the losses: smooth top-1 SVM, discrete-time NLL, Cox with Breslow ties."""

from __future__ import annotations

import torch

from marble.tasks.cox import breslow_loss
from marble.tasks.discrete import discrete_nll, survival_curve
from tests.models.golden_case import Check, GoldenCase

DTYPES = (torch.float64, torch.float32)


def check(case: GoldenCase) -> None:
    kinds = {"cox_breslow": check_cox, "nll_surv": check_nll, "smooth_top1_svm": check_svm}
    found = [run for prefix, run in kinds.items() if case.name.startswith(prefix)]
    assert found, f"no check for loss '{case.name}'; known: {sorted(kinds)}"
    found[0](case)


def check_cox(case: GoldenCase) -> None:
    for dtype in DTYPES:
        risk = case.input("risk", dtype).reshape(-1).requires_grad_()
        event = case.input("censored").reshape(-1) == 0
        loss = breslow_loss(risk, case.input("time").reshape(-1), event)
        (gradient,) = torch.autograd.grad(loss, risk)
        case.compare("loss_sum_breslow", loss, dtype)
        case.compare("grad_sum_breslow", gradient, dtype)
        case.compare("loss_official_mean", loss / len(risk), dtype)


def check_nll(case: GoldenCase) -> None:
    for dtype in DTYPES:
        stored = case.group("output64" if dtype == torch.float64 else "output")
        alphas = [name.removeprefix("loss_alpha") for name in stored if name.startswith("loss_alpha")]
        assert alphas, f"{case.id} holds no loss"
        event = case.input("c").reshape(-1) == 0
        for alpha in alphas:
            logits = case.input("logits", dtype).requires_grad_()
            loss = discrete_nll(logits, case.input("Y").reshape(-1), event, float(alpha))
            (gradient,) = torch.autograd.grad(loss, logits)
            case.compare(f"loss_alpha{alpha}", loss, dtype)
            case.compare(f"grad_alpha{alpha}", gradient, dtype)
        case.compare("risk", -survival_curve(case.input("logits", dtype)).sum(dim=1), dtype)


def check_svm(case: GoldenCase) -> None:
    from marble.models.zoo.clam import smooth_top1_svm

    targets = case.input("y").reshape(-1)
    for dtype in DTYPES:
        logits = case.input("x", dtype).requires_grad_()
        loss = smooth_top1_svm(logits, targets)
        (gradient,) = torch.autograd.grad(loss, logits)
        case.compare("loss", loss, dtype)
        case.compare("grad_x", gradient, dtype)
        rows = [smooth_top1_svm(logits[k : k + 1], targets[k : k + 1]) for k in range(len(targets))]
        case.compare("loss_per_row", torch.stack(rows), dtype)


CHECKS: dict[str, Check] = {"losses": check}
