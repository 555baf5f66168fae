"""Cox's partial likelihood with Breslow's rule for ties, and the two ways to train on it slide by slide.

    L(r) = sum over events i of ( log sum_{j: t_j >= t_i} e^{r_j}  -  r_i )

    t_i, r_i    follow-up time and risk of patient i; a larger risk means an earlier event
    risk set    everyone still followed at t_i, tied times included: {j: t_j >= t_i}

One slide alone is its own risk set: loss 0, gradient 0, and nothing would be learned. So either a *bank* remembers the
latest risk of every training patient and a step moves one of them against all others, or a *group* of slides shares
one graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from marble.errors import InputError, NonFiniteError, RunError
from marble.targets import Target
from marble.tasks.criterion import Criterion, JointLoss
from marble.tasks.metric import Metric, Undefined, finite_scores, outcome_arrays


class RiskSets:
    """Who is at risk at whose event: the order of a cohort by time, worked out once in O(n log n)."""

    def __init__(self, time: Tensor, event: Tensor) -> None:
        # From the longest follow-up to the shortest, everybody in a risk set stands before its end.
        self.order = torch.argsort(time, descending=True, stable=True)  # (n,)
        falling = -time[self.order]
        self.event = event[self.order]  # (n,) bool
        #: of each patient in this order: the first and the last that share its time
        self.first = torch.searchsorted(falling, falling, right=False)
        self.last = torch.searchsorted(falling, falling, right=True) - 1
        self.place = torch.empty_like(self.order)
        self.place[self.order] = torch.arange(len(self.order), device=self.order.device)

    def fault(self) -> str | None:
        """Why no gradient can come from this cohort, if so."""
        if len(self.order) < 2:
            return "batch-of-one Cox has zero gradient: the risk set is the patient itself"
        if not self.event.any():
            return f"no event among {len(self.order)} patients: Cox loss has nothing to learn from"
        if not (self.event & (self.last > 0)).any():
            return "the only event has no other patient at risk: Cox loss has zero gradient"
        return None

    def loss(self, risk: Tensor) -> Tensor:
        """(n,) -> scalar L."""
        ordered = risk[self.order]
        at_risk = torch.logcumsumexp(ordered, dim=0)[self.last]  # (n,) log sum of e^r over each one's risk set
        return (at_risk - ordered)[self.event].sum()

    def loss_and_slope(self, risk: Tensor, patient: int) -> tuple[float, float]:
        """L and its derivative by one patient's risk, in O(n)."""
        ordered = risk[self.order]
        at_risk = torch.logcumsumexp(ordered, dim=0)[self.last]
        place = int(self.place[patient])
        earlier = slice(int(self.first[place]), None)  # at whose events the patient was at risk
        share = torch.exp(ordered[place] - at_risk[earlier])[self.event[earlier]]  # each <= 1
        slope = float(share.sum()) - float(self.event[place])
        return float((at_risk - ordered)[self.event].sum()), slope


def breslow_loss(risk: Tensor, time: Tensor, event: Tensor) -> Tensor:
    """L of risks (n,), times (n,) and events (n,): exact under ties, whatever the order of the rows."""
    if risk.ndim != 1 or time.shape != risk.shape or event.shape != risk.shape:
        shapes = f"{tuple(risk.shape)}, {tuple(time.shape)}, {tuple(event.shape)}"
        raise InputError(f"risk, time and event must be three lists of one length, got {shapes}")
    if not (torch.isfinite(risk).all() and torch.isfinite(time).all()):
        raise NonFiniteError("a risk or a time is not finite", where="Cox loss")
    risk_sets = RiskSets(time.to(risk.device), event.to(risk.device).bool())
    if (fault := risk_sets.fault()) is not None:
        raise InputError(fault, hint='Take the whole training cohort as risk set: risk_set = "bank"')
    return risk_sets.loss(risk)


class TrainingPatients:
    """Which training slide belongs to which patient, with the patients' outcomes; order-free in its arguments."""

    def __init__(self, targets: Mapping[str, Target], patients: Mapping[str, str]) -> None:
        self.slides = sorted(targets)
        outcome_of: dict[str, Target] = {}
        for slide in self.slides:
            if slide not in patients:
                raise InputError("the slide has a target but no patient", where=slide)
            if outcome_of.setdefault(patients[slide], targets[slide]) != targets[slide]:
                raise InputError(f"slides of patient {patients[slide]} have different outcomes", where=slide)
        self.names = sorted(outcome_of)
        place = {name: k for k, name in enumerate(self.names)}
        self.slide_index = {slide: k for k, slide in enumerate(self.slides)}
        self.patient_of = torch.tensor([place[patients[slide]] for slide in self.slides], dtype=torch.int64)
        self.slides_per_patient = torch.bincount(self.patient_of, minlength=len(self.names))
        time, event = outcome_arrays([outcome_of[name] for name in self.names])
        self.time, self.event = torch.from_numpy(time), torch.from_numpy(event)

    def index_of(self, slide_id: str) -> int:
        if slide_id not in self.slide_index:
            raise InputError("not one of the training slides of this criterion", where=slide_id)
        return self.slide_index[slide_id]

    def members(self, slide_ids: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Patients (P,) of these slides, and which of the P each slide belongs to (N,)."""
        rows = torch.tensor([self.index_of(slide) for slide in slide_ids], dtype=torch.int64)
        patients, member = torch.unique(self.patient_of[rows], return_inverse=True)
        return patients, member

    def mean_risks(self, slide_ids: Sequence[str], logits: Tensor) -> tuple[Tensor, Tensor]:
        """Of slides with logits (N, 1): their patients (P,), and the mean risk of each (P,)."""
        patients, member = self.members(slide_ids)
        return patients, mean_by_patient(logits, member, len(patients))

    def joint_loss(self, slide_ids: Sequence[str]) -> JointLoss:
        """L of the patients of these slides, who are each other's risk set; 0 without an event."""
        patients, member = self.members(slide_ids)
        risk_sets = RiskSets(self.time[patients], self.event[patients])
        return lambda logits: risk_sets.loss(mean_by_patient(logits, member, len(patients)))


class CoxBank(Criterion):
    """Cox with one slide per step and the whole training cohort as risk set.

    The bank holds the latest risk of every training slide; a patient's risk is the mean over its slides. A step puts
    the slide's new risk into the bank and takes the exact derivative of L by it, all others held fixed. While the
    weights stand still, the gradients of all slides add up to the gradient of the whole cohort.
    """

    needs_priming: ClassVar[bool] = True

    def __init__(self, targets: Mapping[str, Target], patients: Mapping[str, str]) -> None:
        self._cohort = TrainingPatients(targets, patients)
        self._risk_sets = RiskSets(self._cohort.time, self._cohort.event)
        if (fault := self._risk_sets.fault()) is not None:
            raise InputError(fault, hint="Train on more patients, or split again stratified by event")
        self._latest: dict[str, Tensor] = {}  # stream -> (slides,) float64; NaN = never seen

    def prime(self, slide_id: str, logits: Tensor, stream: str = "main") -> None:
        self._store(self._cohort.index_of(slide_id), single_risk(slide_id, logits), stream)

    def loss(self, slide_id: str, logits: Tensor, stream: str = "main") -> Tensor:
        """L of the whole cohort; its gradient flows into this slide's risk alone."""
        slide, risk = self._cohort.index_of(slide_id), single_risk(slide_id, logits)
        latest = self._store(slide, risk, stream)  # (slides,)
        if latest.isnan().any():
            unseen = int(latest.isnan().sum())
            raise InputError(
                f"{unseen} of {len(latest)} training slides have no risk in the bank yet (stream '{stream}')",
                where=self._cohort.slides[int(latest.isnan().nonzero()[0])],
                hint="Call prime() for every training slide before the first step",
            )
        count = self._cohort.slides_per_patient
        patients = torch.zeros(len(count), dtype=torch.float64).index_add_(0, self._cohort.patient_of, latest) / count
        patient = int(self._cohort.patient_of[slide])
        loss, slope = self._risk_sets.loss_and_slope(patients, patient)
        # The value is L, the derivative by `risk` is slope / slides of the patient.
        return risk.new_tensor(loss) + slope / int(count[patient]) * (risk - risk.detach())

    def joint_loss(self, slide_ids: Sequence[str]) -> JointLoss:
        return self._cohort.joint_loss(slide_ids)

    def held_out_loss(self, targets: Mapping[str, Target], patients: Mapping[str, str]) -> JointLoss:
        return TrainingPatients(targets, patients).joint_loss(list(targets))

    def validation_loss(self, targets: Sequence[Target], logits: Tensor) -> Metric:
        return held_out_cox_loss(targets, logits)

    def state(self) -> dict[str, Tensor]:
        return {f"bank.{stream}": latest.clone() for stream, latest in self._latest.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        for key, latest in state.items():
            if not key.startswith("bank.") or latest.shape != (len(self._cohort.slides),):
                raise RunError(
                    f"'{key}' {tuple(latest.shape)} is not a bank of the {len(self._cohort.slides)} training slides",
                    hint="Resume with the cohort and the split that the run was started with",
                )
        self._latest = {key.removeprefix("bank."): latest.double().clone() for key, latest in state.items()}

    def _store(self, slide: int, risk: Tensor, stream: str) -> Tensor:
        if stream not in self._latest:
            self._latest[stream] = torch.full((len(self._cohort.slides),), torch.nan, dtype=torch.float64)
        self._latest[stream][slide] = risk.detach().double().cpu()
        return self._latest[stream]


class CoxGroup(Criterion):
    """Cox with N slides in one graph, which are each other's risk set; slides of one patient are averaged."""

    def __init__(self, targets: Mapping[str, Target], patients: Mapping[str, str]) -> None:
        self._cohort = TrainingPatients(targets, patients)

    def comparable(self, slide_ids: Sequence[str]) -> bool:
        """Whether these slides hold an event with another patient at risk; a group without is refused."""
        patients, _ = self._cohort.members(slide_ids)
        return RiskSets(self._cohort.time[patients], self._cohort.event[patients]).fault() is None

    def loss_of_group(self, slide_ids: Sequence[str], logits: Tensor) -> Tensor:
        """L of the group's patients from logits (N, 1)."""
        if logits.shape != (len(slide_ids), 1):
            raise InputError(f"logits of {len(slide_ids)} slides must be ({len(slide_ids)}, 1), got {(*logits.shape,)}")
        patients, risk = self._cohort.mean_risks(slide_ids, logits)
        return breslow_loss(risk, self._cohort.time[patients], self._cohort.event[patients])

    def loss(self, slide_id: str, logits: Tensor, stream: str = "main") -> Tensor:
        return self.loss_of_group([slide_id], logits[None])

    def joint_loss(self, slide_ids: Sequence[str]) -> JointLoss:
        return self._cohort.joint_loss(slide_ids)

    def held_out_loss(self, targets: Mapping[str, Target], patients: Mapping[str, str]) -> JointLoss:
        return TrainingPatients(targets, patients).joint_loss(list(targets))

    def validation_loss(self, targets: Sequence[Target], logits: Tensor) -> Metric:
        return held_out_cox_loss(targets, logits)


def mean_by_patient(logits: Tensor, member: Tensor, patients: int) -> Tensor:
    """Logits (N, 1) of slides, each of the patient `member` (N,) -> mean risks (patients,)"""
    member = member.to(logits.device)
    total = logits.new_zeros(patients).index_add(0, member, logits[:, 0])
    return total / torch.bincount(member, minlength=patients)


def single_risk(slide_id: str, logits: Tensor) -> Tensor:
    """The one risk in logits (1,); a NaN must never reach the bank, where it would spoil every later step."""
    if logits.shape != (1,):
        raise InputError(f"Cox needs one output, got logits of shape {tuple(logits.shape)}", where=slide_id)
    if not torch.isfinite(logits).all():
        raise NonFiniteError(f"risk is {float(logits.detach()[0])}", where=slide_id)
    return logits[0]


def held_out_cox_loss(targets: Sequence[Target], logits: Tensor) -> Metric:
    """L per event of held-out cases (n, 1), which are each other's risk set."""
    time, event = outcome_arrays(targets)
    risk_sets = RiskSets(torch.from_numpy(time), torch.from_numpy(event))
    if (fault := risk_sets.fault()) is not None:
        return Undefined(fault)
    if logits.shape != (len(time), 1):
        raise InputError(f"logits of {len(time)} cases must be ({len(time)}, 1), got {tuple(logits.shape)}")
    risk = finite_scores(logits.detach().double().cpu().numpy()[:, 0], "validation risk")
    return float(risk_sets.loss(torch.from_numpy(risk))) / float(event.sum())
