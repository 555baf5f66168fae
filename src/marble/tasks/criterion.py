"""A task's loss bound to one training set: one slide at a time, with whatever it must remember between steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from marble.errors import RunError
from marble.targets import Target
from marble.tasks.metric import Metric

if TYPE_CHECKING:
    from torch import Tensor

#: the logits (n, outputs) of certain slides -> the sum of their losses
JointLoss: TypeAlias = "Callable[[Tensor], Tensor]"


class Criterion(ABC):
    """The loss of one training set, one slide at a time.

    `stream` tells the predictions of one slide apart (a model's main output and its side outputs).
    """

    #: whether a single logit says by itself how common a thing is; a risk and a standardised number do not
    has_intercept: ClassVar[bool] = False
    #: whether every training slide must be shown once, through :meth:`prime`, before the first step
    needs_priming: ClassVar[bool] = False

    @abstractmethod
    def loss(self, slide_id: str, logits: Tensor, stream: str = "main") -> Tensor:
        """A scalar whose backward gives this step's gradient."""

    @abstractmethod
    def validation_loss(self, targets: Sequence[Target], logits: Tensor) -> Metric:
        """Mean loss of held-out cases, from their logits (n, outputs) at once; changes no state."""

    @abstractmethod
    def held_out_loss(self, targets: Mapping[str, Target], patients: Mapping[str, str]) -> JointLoss:
        """The sum of the losses of other slides, in the order of `targets`, with all that this training set decided.

        Weights of classes and bins of time are those that the model was trained with.
        """

    def joint_loss(self, slide_ids: Sequence[str]) -> JointLoss:
        """The sum of the losses of these training slides as a function of their logits; changes no state.

        For models that are solved, not trained step by step: whatever depends on the slides alone is worked out here,
        once, and not at each of some thousand logits. A loss that is not convex in the logits has none.
        """
        raise RunError(f"{type(self).__name__} cannot be solved at once", hint="Train this model with another loss")

    def prime(self, slide_id: str, logits: Tensor, stream: str = "main") -> None:
        """Take note of a slide's prediction without a gradient; most losses have nothing to note."""
        del slide_id, logits, stream

    def state(self) -> dict[str, Tensor]:
        """What must be saved so that a resumed run goes on bitwise as if never stopped."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if state:
            raise RunError(f"{type(self).__name__} keeps no state, but the checkpoint holds {sorted(state)}")
