"""Files that hold code, under every name that other tools give such files, through every verb that opens files."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from marble.bags.store import BagStore
from tests.bags.making import random_bag
from tests.cli.running import marble
from tests.compute.forked import forked_workers
from tests.extract.test_any_folder import SETTINGS

__all__ = ["forked_workers"]  # a fixture
pytestmark = [pytest.mark.reliability, pytest.mark.timeout(3600), pytest.mark.usefixtures("forked_workers")]


class _Malice:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.mkdir, (str(self.mark),)


def _torch(malice: _Malice, zipped: bool) -> bytes:
    out = io.BytesIO()
    torch.save({"state_dict": {"w": torch.zeros(2)}, "x": malice}, out, _use_new_zipfile_serialization=zipped)
    return out.getvalue()


def _numpy(malice: _Malice, save: Callable[..., None]) -> bytes:
    out = io.BytesIO()
    save(out, np.array([malice], dtype=object))
    return out.getvalue()


def _polyglot(plain: bytes) -> bytes:
    """A pickle that is also a zip archive."""
    out = io.BytesIO(plain)
    out.seek(0, io.SEEK_END)
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr("data.pkl", plain)
    return out.getvalue()


def hostile(mark: Path) -> dict[str, bytes]:
    malice = _Malice(mark)
    plain = pickle.dumps(malice)
    tag = f"!!python/object/apply:os.mkdir ['{mark}']\n".encode()
    named = {f"plain{suffix}": plain for suffix in (".pt", ".ckpt", ".bin", ".pkl", ".joblib", ".h5", ".tiff", ".svs")}
    return named | {
        "zipped.pt": _torch(malice, zipped=True),
        "old.pth": _torch(malice, zipped=False),
        "objects.npy": _numpy(malice, np.save),
        "objects.npz": _numpy(malice, np.savez),
        "renamed.safetensors": plain,
        "zip.safetensors": _torch(malice, zipped=True),
        "polyglot.pt": _polyglot(plain),
        "tag.yaml": tag,
        "tag.json": tag,
        "tag.toml": tag,
    }


def doors(path: Path, out: Path) -> list[tuple[object, ...]]:
    """The verbs that somebody would give this file to."""
    if path.suffix in (".tiff", ".svs"):
        return [("extract", path, "--store", out / "bags", *SETTINGS)]
    if path.suffix in (".yaml", ".json", ".toml"):
        return [("split", path, "--out", out / "splits"), ("run", path, "--out", out)]
    return [
        ("import", "--level", f"10:{path.parent}", "--store", out / "bags"),
        ("import-checkpoint", path, "--model", "abmil", "--out", out / "weights.safetensors"),
        ("split", path, "--out", out / "splits"),
    ]


def test_code_in_a_file_is_refused_by_name_and_never_runs(
    tmp_path: Path, record_property: Callable[[str, object], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # asks torch to run what it loads
    mark = tmp_path / "ran"
    files = hostile(mark)
    for name, data in files.items():
        folder = tmp_path / f"in-{name}"
        folder.mkdir()
        path = folder / name
        path.write_bytes(data)
        out = tmp_path / f"out-{name}"
        for words in doors(path, out):
            ended = marble(*words)
            assert ended.code != 0, (name, words[0], ended.output)
            assert name in ended.output or str(folder) in ended.output, (name, words[0], ended.output)
            assert not mark.exists(), (name, words[0])
        store = BagStore(tmp_path / f"store-{name}")
        store.save(random_bag())
        store.bag_path("s").write_bytes(data)
        assert marble("verify", store.root).code == 1
        assert not mark.exists(), name
    pickle.loads(files["plain.pkl"])  # it would have run
    assert mark.exists()
    record_property("cases", len(files))
