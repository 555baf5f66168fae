"""The matrix products a model really does, recorded while it runs, and the time they take alone.

Convolutions count as the products they amount to, fused attention as the products of its passes (two forwards, five
backwards). Everything else, scans and Fourier transforms included, is not a product and is not in the bare time;
nor are the small products inside the compiled scans, which torch does not see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

#: numbers in the unfolded input of a convolution that are multiplied at once; the whole would not fit in memory
UNFOLDED_NUMBERS = 1 << 22


class Product(NamedTuple):
    """`batch` products of (m, k) with (k, n)."""

    batch: int
    m: int
    k: int
    n: int

    @property
    def flops(self) -> int:
        return 2 * prod(self)


class RecordProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside `with RecordProducts() as recorded`, `recorded.products` counts every product that is run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products: Counter[Product] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        rule = _RULES.get(func._schema.name.removeprefix("aten::").removesuffix("_"))
        if rule is not None:
            self.products.update(product for product in rule(args, result) if product.flops)
        return result


def bare(products: Mapping[Product, int]) -> Callable[[], None]:
    """A function that runs the products, each as often as counted, in buffers made beforehand."""
    left, right = (torch.randn(max((size(p) for p in products), default=0)) for size in (_left, _right))
    out = torch.zeros(max((p.batch * p.m * p.n for p in products), default=0))

    def run_all() -> None:
        for product, count in products.items():
            b, m, k, n = product
            a, c, y = left[: b * m * k], right[: b * k * n], out[: b * m * n]
            if b == 1:
                for _ in range(count):
                    torch.mm(a.view(m, k), c.view(k, n), out=y.view(m, n))
            else:
                for _ in range(count):
                    torch.bmm(a.view(b, m, k), c.view(b, k, n), out=y.view(b, m, n))

    return run_all


def _left(product: Product) -> int:
    return product.batch * product.m * product.k


def _right(product: Product) -> int:
    return product.batch * product.k * product.n


# ---- how calls turn into products ----------------------------------------------------------------------------------

Rule = Callable[[tuple[Any, ...], Any], list[Product]]


def _matrices(left: Tensor, right: Tensor) -> list[Product]:
    n = right.shape[-1] if right.ndim > 1 else 1
    return [Product(prod(left.shape[:-2]), left.shape[-2], left.shape[-1], n)]


def _convolution(args: tuple[Any, ...], result: Any) -> list[Product]:
    """Per group, (out, in * taps) times the unfolded input (in * taps, places)."""
    x, weight, groups = args[0], args[1], args[8]
    channels, unfolded = weight.shape[0] // groups, prod(weight.shape[1:])
    places = x.shape[0] * prod(result.shape[2:])
    return [Product(groups, channels, unfolded, block) for block in _blocks(places, groups * unfolded)]


def _convolution_backward(args: tuple[Any, ...], _result: Any) -> list[Product]:
    grad, weight, groups = args[0], args[2], args[9]
    to_input, to_weight, _ = args[10]
    channels, unfolded = weight.shape[0] // groups, prod(weight.shape[1:])
    blocks = _blocks(grad.shape[0] * prod(grad.shape[2:]), groups * unfolded)
    input_side = [Product(groups, unfolded, channels, block) for block in blocks if to_input]
    return input_side + [Product(groups, channels, block, unfolded) for block in blocks if to_weight]


def _blocks(places: int, rows: int) -> list[int]:
    size = max(1, UNFOLDED_NUMBERS // rows)
    return [min(size, places - start) for start in range(0, places, size)]


def _attention(args: tuple[Any, ...], _result: Any) -> list[Product]:
    b, n, m, d, e = _attention_sizes(*args[:3])
    return [Product(b, n, d, m), Product(b, n, m, e)]


def _attention_backward(args: tuple[Any, ...], _result: Any) -> list[Product]:
    """The scores again, then the gradients of values, weights, queries and keys."""
    b, n, m, d, e = _attention_sizes(*args[1:4])
    scores, values, weights = Product(b, n, d, m), Product(b, m, n, e), Product(b, n, e, m)
    return [scores, values, weights, Product(b, n, m, d), Product(b, m, n, d)]


def _attention_sizes(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, int, int, int, int]:
    """(heads of the whole batch, queries, keys, width of queries, width of values)."""
    return prod(q.shape[:-2]), q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("mm", "bmm", "mv"), lambda args, _result: _matrices(args[0], args[1])),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), lambda args, _result: _matrices(args[1], args[2])),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
