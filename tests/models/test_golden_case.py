"""The harness itself: weights made from their name equal the definition, and a wrong number is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.models.golden_case import GoldenCase, find_cases, recipe_tensor, relative_error


def test_recipe_weights_follow_their_definition() -> None:
    key, shape, offset, scale = "weight/_fc1.0.weight", (3, 5), 0.25, 0.5
    modulus, expected = 2**64, []
    for i in range(15):
        z = (i + (crc32(key.encode()) << 32) + 0x9E3779B97F4A7C15) % modulus
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % modulus
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % modulus
        z ^= z >> 31
        expected.append(np.float32(offset + scale * ((z >> 40) / 2**23 - 1)))
    assert recipe_tensor(key, shape, offset, scale).flatten().tolist() == [float(value) for value in expected]


def test_a_case_is_found_and_a_wrong_number_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    recipe = {"weight/w": {"shape": [2], "offset": 0.0, "scale": 1.0}}
    info = {"ctor": {}, "recipe": recipe, "param_grad_norms_f64": {"w": 2.0, "none": None}}
    (tmp_path / "system" / "full.json").write_text(json.dumps(info))
    right = torch.tensor([1.0, 2.0], dtype=torch.float64)
    save_file({"output64/logits": right[None]}, tmp_path / "system" / "full.safetensors")
    (case,) = find_cases(tmp_path)
    assert case.id == "system/full"
    assert case.weights(torch.float64)["w"].shape == (2,)
    case.compare("logits", right, torch.float64)
    case.compare("not stored", right, torch.float64)
    with pytest.raises(AssertionError, match=r"system/full logits .* relative error"):
        case.compare("logits", right * (1 + 1e-9), torch.float64)
    with pytest.raises(AssertionError, match="not finite"):
        case.compare("logits", right * float("nan"), torch.float64)
    gradient = torch.tensor([2.0, 0.0])
    case.compare_parameter_gradients({"w": gradient, "none": None})
    with pytest.raises(AssertionError, match="grad of w"):
        case.compare_parameter_gradients({"w": gradient * 1.001, "none": None})
    with pytest.raises(AssertionError, match="no gradient for parameter w"):
        case.compare_parameter_gradients({"none": None})


def test_relative_error_is_relative_to_the_largest() -> None:
    assert relative_error(torch.tensor([1.0, 100.0]), torch.tensor([0.0, 100.0])) == pytest.approx(0.01)
    assert GoldenCase(Path("a/b"), "c").id == "b/c"
