"""The networks that timm builds for catalogue rows: what is read from their output, and what weight files need to fit.

Every file is loaded strictly: a missing or unknown tensor is an error, so a network that differs from the published
one cannot go unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marble.encoders.attention_pool import AttentionPool, larger_positions
from marble.encoders.catalogue import EncoderRow, Network
from marble.encoders.torchvision_guard import import_timm
from marble.errors import InputError, UnavailableError

State = Mapping[str, Tensor]


class ClassAndMean(nn.Module):
    """Class token, then the mean of the patch tokens; registers are left out."""

    def __init__(self, trunk: nn.Module, prefix: int) -> None:
        super().__init__()
        self.trunk, self.prefix = trunk, prefix

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.trunk(x)  # (n, prefix + patches, d)
        return torch.cat([tokens[:, 0], tokens[:, self.prefix :].mean(dim=1)], dim=1)  # (n, 2 d)


class StageMean(nn.Module):
    """Mean of the single feature map that a `features_only` network gives."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, x: Tensor) -> Tensor:
        mean: Tensor = self.trunk(x)[0].mean((2, 3))  # (n, d)
        return mean


class PooledByAttention(nn.Module):
    """A vision transformer whose tokens one learned query pools."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk
        self.attn_pool_contrast = AttentionPool(dim=768, context_dim=1024, heads=8)
        self.ln_contrast = nn.LayerNorm(768)

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.ln_contrast(self.attn_pool_contrast(self.trunk(x)))  # (n, 768)
        return pooled


class ConvStem(nn.Module):
    """CTransPath's stem: two strided convolutions and a 1x1 in place of cutting patches."""

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 4,
        in_chans: int = 3,
        embed_dim: int = 96,
        norm_layer: Callable[[int], nn.Module] | None = None,
        **_ignored: Any,
    ) -> None:
        super().__init__()
        self.img_size = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
        self.patch_size = (patch_size, patch_size) if isinstance(patch_size, int) else tuple(patch_size)
        self.grid_size = (self.img_size[0] // self.patch_size[0], self.img_size[1] // self.patch_size[1])
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        layers: list[nn.Module] = []
        width = in_chans
        for wider in (embed_dim // 8, embed_dim // 4):
            layers += [nn.Conv2d(width, wider, 3, 2, 1, bias=False), nn.BatchNorm2d(wider), nn.ReLU(inplace=True)]
            width = wider
        self.proj = nn.Sequential(*layers, nn.Conv2d(width, embed_dim, 1))
        self.norm = norm_layer(embed_dim) if norm_layer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        grid: Tensor = self.norm(self.proj(x).permute(0, 2, 3, 1))  # (n, rows, cols, embed_dim)
        return grid


def dinov2_keys(state: State) -> State:
    """Tensors named as in transformers' Dinov2Model, renamed for timm's vision transformer."""
    renamed: dict[str, Tensor] = {}
    for key, value in state.items():
        if key.endswith("mask_token") or ".attention.attention.key." in key or ".attention.attention.value." in key:
            continue
        if ".attention.attention.query." in key:
            parts = [state[key.replace(".query.", f".{name}.")] for name in ("query", "key", "value")]
            key, value = key.replace("attention.attention.query", "attn.qkv"), torch.cat(parts)
        for pattern, replacement in _DINOV2_NAMES:
            key = re.sub(pattern, replacement, key)
        renamed[key] = value
    return renamed


_DINOV2_NAMES = (
    (r"^embeddings\.cls_token$", "cls_token"),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^encoder\.layer\.", "blocks."),
    (r"\.attention\.output\.dense\.", ".attn.proj."),
    (r"\.layer_scale(\d)\.lambda1$", r".ls\1.gamma"),
    (r"^layernorm\.", "norm."),
)


def swin_keys(state: State) -> State:
    """Leave out derived buffers and the head; number merging layers as timm does now.

    A merging layer stands between two stages. Older files count it to the stage before it, timm to the one after it;
    only an older file has one in stage 0.
    """
    shift = int(any(key.startswith("layers.0.downsample") for key in state))
    return {
        re.sub(r"layers\.(\d+)\.downsample", lambda m: f"layers.{int(m[1]) + shift}.downsample", key): value
        for key, value in state.items()
        if not key.endswith(("relative_position_index", "attn_mask")) and not key.startswith("head.")
    }


def resnet_keys(state: State) -> State:
    """Leave out what lies behind the third stage."""
    return {f"trunk.{key}": value for key, value in state.items() if not key.startswith(("layer4.", "fc."))}


#: what is made of the trunk timm builds, by the names that catalogue rows use
READOUTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "pooled": lambda trunk: trunk,
    "class token and mean of the patches after 4 registers": lambda trunk: ClassAndMean(trunk, prefix=5),
    "mean of the feature map": StageMean,
    "attention-pool": PooledByAttention,
}
#: how published tensors are brought to the network's own names, by the names that catalogue rows use
NAMES: dict[str, Callable[[State], State]] = {
    "timm": lambda state: state,
    "trunk": lambda state: {f"trunk.{key}": value for key, value in state.items()},
    "positions of 28 rows": lambda state: larger_positions(state, "trunk.pos_embed", rows=28),
    "transformers' DINOv2": dinov2_keys,
    "older Swin": swin_keys,
    "first three stages": resnet_keys,
}
#: options of timm's constructors that are classes, and so cannot be written into a row
PARTS: dict[str, Any] = {"convolutional stem": ConvStem}


def build_network(network: Network) -> nn.Module:
    """The network of a catalogue row, with random weights."""
    timm = import_timm()
    options = {"num_classes": 0, **network.options}
    options = {key: PARTS.get(value, value) if isinstance(value, str) else value for key, value in options.items()}
    if network.swiglu:
        options |= {"mlp_layer": timm.layers.SwiGLUPacked, "act_layer": nn.SiLU}
    return READOUTS[network.readout](timm.create_model(network.timm_name, pretrained=False, **options))


def build_any(row: EncoderRow, weights: Path | None) -> tuple[nn.Module, Mapping[str, Any]]:
    """A network of timm's own list (`timm:NAME`) or one described by a config.json beside its weights (`hf-hub:`)."""
    timm = import_timm()
    if row.family == "any-timm":
        name = row.name.removeprefix("timm:")
        if not timm.is_model(name):
            raise InputError(
                f"timm {timm.__version__} has no model '{name}'",
                where="encoder",
                hint='List its names with `python -c "import timm; print(timm.list_models())"`',
            )
        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    else:
        if weights is None or not (weights.parent / "config.json").is_file():
            raise UnavailableError(
                "no config.json beside the weights, so the network they belong to is unknown",
                where=weights or row.name,
                hint=f"Keep config.json and model.safetensors of {row.source} in one folder",
            )
        model = timm.create_model(f"local-dir:{weights.parent}", pretrained=False, num_classes=0)
    return model, model.pretrained_cfg  # type: ignore[return-value]


def load_strictly(model: nn.Module, state: State, where: Path) -> None:
    """Fill `model`; name what is missing, what is left over and what has another shape."""
    own = model.state_dict()
    missing, extra = sorted(set(own) - set(state)), sorted(set(state) - set(own))
    shaped = [key for key in own.keys() & state.keys() if own[key].shape != state[key].shape]
    if missing or extra or shaped:
        said = [
            f"{len(names)} {what} (e.g. '{names[0]}')"
            for names, what in ((missing, "tensors missing"), (extra, "unknown"), (sorted(shaped), "of another shape"))
            if names
        ]
        raise InputError(
            f"weights do not fit the network: {', '.join(said)}",
            where=where,
            hint="Give the weights file published for this encoder",
        )
    model.load_state_dict(dict(state), strict=True)


def without_head(state: State, config: Mapping[str, Any]) -> State:
    """Drop the classifier that ImageNet files carry."""
    heads = config.get("classifier") or ()
    heads = (heads,) if isinstance(heads, str) else tuple(heads)
    return {key: value for key, value in state.items() if not key.startswith(tuple(f"{head}." for head in heads))}
