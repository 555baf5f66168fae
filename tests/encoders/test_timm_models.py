"""Networks built by timm: shapes of all, exact numbers of those an oracle exists for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import nn

from marble.encoders import CATALOGUE, load_encoder
from marble.encoders.attention_pool import AttentionPool, larger_positions
from marble.encoders.catalogue import Rgb
from marble.encoders.loading import forward_module, ways
from marble.encoders.timm_models import ClassAndMean, ConvStem, build_network, dinov2_keys, load_strictly, swin_keys
from marble.encoders.torchvision_guard import import_timm
from marble.errors import InputError, IntegrityError

timm: Any = import_timm()
CPU = torch.device("cpu")
NETWORKS = {name: row.network for name, row in CATALOGUE.items() if row.network is not None}


def on_cpu(model: nn.Module, mean: Rgb, std: Rgb, tile: NDArray[np.uint8]) -> NDArray[np.float32]:
    return ways(forward_module(model, mean, std, CPU, "float32"), CPU)[0](tile)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_gives_the_dimension_of_its_row(name: str) -> None:
    row = CATALOGUE[name]
    assert row.input_px
    with torch.device("meta"), torch.inference_mode():
        tokens = build_network(NETWORKS[name]).eval()(torch.empty(2, 3, row.input_px, row.input_px))
    assert tuple(tokens.shape) == (2, row.dim)


def test_parameter_counts_are_the_published_ones() -> None:
    published = {"uni_v1": 303, "uni_v2": 681, "virchow2": 631, "gigapath": 1135, "hoptimus1": 1135, "phikon_v2": 303}
    for name, millions in published.items():
        with torch.device("meta"):
            count = sum(p.numel() for p in build_network(NETWORKS[name]).parameters())
        assert round(count / 1e6) == millions, name


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random numbers in every tensor, norms and layer scales included, so that no part can be left out unnoticed."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(noise.abs() + 0.5 if "running_var" in name or "norm" in name else noise * 0.05)
    return model.eval()


@pytest.mark.slow
def test_uni_v1_end_to_end_with_random_weights(tmp_path: Path) -> None:
    oracle = randomise(
        timm.create_model("vit_large_patch16_224", img_size=224, patch_size=16, init_values=1e-5, num_classes=0,
                          dynamic_img_size=True)
    )  # fmt: skip
    path = tmp_path / "model.safetensors"
    save_file(oracle.state_dict(), path)
    encoder = load_encoder("uni_v1", weights=path)
    tile = np.random.default_rng(0).integers(0, 256, (2, 224, 224, 3), dtype=np.uint8)
    x = torch.from_numpy(tile).permute(0, 3, 1, 2).float() / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    with torch.inference_mode():
        expected = oracle((x - mean[:, None, None]) / std[:, None, None]).numpy()
    tokens = encoder.encode(tile)
    assert tokens.shape == (2, 1024)
    assert np.abs(tokens - expected).max() <= 1e-5 * np.abs(expected).max()
    assert encoder.identity().weights_sha256 is not None
    state = oracle.state_dict()
    state.pop("norm.bias")
    save_file(state, path)
    with pytest.raises(InputError, match=r"1 tensors missing \(e.g. 'norm.bias'\)"):
        load_encoder("uni_v1", weights=path)


def resnet_weights(folder: Path) -> tuple[Path, nn.Module]:
    model = randomise(timm.create_model("resnet50", pretrained=False))
    path = folder / "resnet50.safetensors"
    save_file(model.state_dict(), path)
    return path, model


def test_resnet50_is_the_mean_of_the_third_stage(tmp_path: Path) -> None:
    path, model = resnet_weights(tmp_path)
    tile = np.random.default_rng(0).integers(0, 256, (1, 224, 224, 3), dtype=np.uint8)
    stages: list[torch.Tensor] = []
    model.layer3.register_forward_hook(lambda _m, _i, out: stages.append(out))  # type: ignore[union-attr]
    row = CATALOGUE["resnet50"]
    assert row.mean
    assert row.std
    on_cpu(model, row.mean, row.std, tile)
    tokens = load_encoder("resnet50", weights=path).encode(tile)
    assert np.allclose(tokens, stages[0].mean((2, 3)).numpy(), rtol=1e-5, atol=1e-6)


def test_any_timm_name_with_local_weights(tmp_path: Path) -> None:
    path, model = resnet_weights(tmp_path)
    encoder = load_encoder("timm:resnet50", weights=path)
    assert (encoder.dim, encoder.input_px) == (2048, 224)
    tile = np.random.default_rng(0).integers(0, 256, (1, 224, 224, 3), dtype=np.uint8)
    model.reset_classifier(0)  # type: ignore[operator]
    config: Any = model.pretrained_cfg
    expected = on_cpu(model, config["mean"], config["std"], tile)
    assert np.array_equal(encoder.encode(tile), expected)
    with pytest.raises(InputError, match="has no model"):
        load_encoder("timm:resnet5000", weights=path)


def test_hub_folder_names_its_own_network(tmp_path: Path) -> None:
    model = randomise(timm.create_model("resnet18", pretrained=False, num_classes=0))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(
        '{"architecture": "resnet18", "num_classes": 0, "num_features": 512, "pretrained_cfg": {"input_size": '
        '[3, 96, 96], "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25], "classifier": "fc"}}'
    )
    encoder = load_encoder("hf-hub:someone/resnet", weights=tmp_path)
    assert (encoder.dim, encoder.input_px) == (512, 96)
    tile = np.random.default_rng(0).integers(0, 256, (1, 96, 96, 3), dtype=np.uint8)
    expected = on_cpu(model, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), tile)
    assert np.array_equal(encoder.encode(tile), expected)


def test_a_pinned_hash_refuses_a_changed_byte(tmp_path: Path) -> None:
    path, _ = resnet_weights(tmp_path)
    pinned = load_encoder("resnet50", weights=path).weights_sha256
    load_encoder("resnet50", weights=path, expect_sha256=pinned)
    with open(path, "r+b") as file:
        file.seek(-5, 2)
        byte = file.read(1)
        file.seek(-5, 2)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(IntegrityError, match="pinned"):
        load_encoder("resnet50", weights=path, expect_sha256=pinned)


def test_dinov2_keys_against_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Dinov2Config(
        image_size=32, patch_size=8, hidden_size=48, num_hidden_layers=2, num_attention_heads=3, mlp_ratio=4
    )
    oracle = randomise(transformers.Dinov2Model(config))
    own = timm.create_model(
        "vit_large_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, init_values=1e-5,
        num_classes=0,
    ).eval()  # fmt: skip
    oracle.save_pretrained(tmp_path)  # type: ignore[operator]  # with the names that published files have
    load_strictly(own, dinov2_keys(load_file(tmp_path / "model.safetensors")), tmp_path)
    x = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        expected = oracle(x).last_hidden_state[:, 0]
        assert torch.allclose(own(x), expected, rtol=1e-4, atol=1e-5)


def test_swin_keys_of_both_namings_load() -> None:
    model = randomise(timm.create_model("swin_tiny_patch4_window7_224", embed_layer=ConvStem, num_classes=0))
    new = dict(model.state_dict())
    old = {key.replace(f"layers.{i}.downsample", f"layers.{i - 1}.downsample"): value
           for key, value in new.items()
           for i in [int(key.split(".")[1]) if key.startswith("layers.") else 0]}  # fmt: skip
    old |= {"layers.0.blocks.0.attn.relative_position_index": torch.zeros(1), "head.weight": torch.zeros(1)}
    assert set(old) != set(new)
    for state in (old, new):
        assert set(swin_keys(state)) == set(new)
        assert all(torch.equal(swin_keys(state)[key], new[key]) for key in new)


def test_class_and_mean_leaves_registers_out() -> None:
    tokens = torch.randn(2, 1 + 4 + 9, 6)
    out = ClassAndMean(nn.Identity(), prefix=5)(tokens)
    assert torch.allclose(out[:, :6], tokens[:, 0])
    assert torch.allclose(out[:, 6:], tokens[:, 5:].sum(1) / 9)


def test_attention_pool_against_sums_by_hand() -> None:
    torch.manual_seed(0)
    pool = AttentionPool(dim=8, context_dim=5, heads=2).double()
    tokens = torch.randn(3, 7, 5, dtype=torch.float64)
    key, value = pool.to_kv(pool.ln_k(tokens)).split(8, dim=-1)
    query = pool.to_q(pool.ln_q(pool.query))[0]
    mixed = torch.zeros(3, 8, dtype=torch.float64)
    for n in range(3):
        for head in (slice(0, 4), slice(4, 8)):
            weight = torch.softmax(key[n, :, head] @ query[head] / 2, dim=0)  # sqrt(4) = 2
            mixed[n, head] = (weight[:, None] * value[n, :, head]).sum(0)
    assert torch.allclose(pool(tokens), mixed @ pool.to_out.weight.T, atol=1e-12)


def test_positions_are_stretched_once_and_keep_the_class_token() -> None:
    state = {"p": torch.randn(1, 1 + 4, 3)}
    stretched = larger_positions(state, "p", rows=4)["p"]
    assert stretched.shape == (1, 17, 3)
    assert torch.equal(stretched[:, 0], state["p"][:, 0])
    again = larger_positions({"p": stretched}, "p", rows=4)["p"]
    assert again is stretched
    flat = larger_positions({"p": torch.ones(1, 5, 3)}, "p", rows=4)["p"]
    assert torch.allclose(flat, torch.ones(1, 17, 3))
