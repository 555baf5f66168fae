"""How many token orders a prediction needs: chosen on validation, for a model whose result depends on their order.

The answer is the mean over K orders, so what is left to chance in it is order_sd / sqrt(K). The smallest K is taken for
which that is within the tolerance for nine validation cases in ten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SHARE = 0.9  # of validation cases that keep the tolerance


@dataclass(frozen=True)
class OrderChoice:
    """The number of orders, and what it was chosen by; `reached` is false where even the most orders are not enough."""

    orders: int
    most: int
    tolerance: float | None
    order_sd: float
    reached: bool

    def record(self) -> dict[str, Any]:
        return {
            "most": self.most,
            "tolerance": self.tolerance,
            "val_order_sd": self.order_sd,
            "order_error": self.order_sd / math.sqrt(self.orders),
            "reached": self.reached,
        }


def choose_orders(order_sds: Sequence[float], most: int, tolerance: float | None) -> OrderChoice:
    """The fewest orders, of at most `most`, by the SDs of validation cases over their orders (in logits).

    Without a tolerance all are taken. A model for which order cannot matter has SDs of 0 and needs one.
    """
    sd = float(np.quantile(np.asarray(order_sds, dtype=np.float64), SHARE, method="inverted_cdf"))
    if tolerance is None:
        return OrderChoice(most, most, None, sd, True)
    needed = max(1, math.ceil((sd / tolerance) ** 2 * (1 - 1e-12)))  # a K that meets it exactly is enough
    return OrderChoice(min(needed, most), most, tolerance, sd, needed <= most)
