"""Records and `store.json` carry a checksum of all they say; malformed JSON anywhere is one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marble import files
from marble.bags import BagStore
from marble.bags.bag import Bag, Level
from marble.errors import BagError, InputError, IntegrityError, MarbleError
from marble.guarded_json import parse_json
from marble.verify import verify_path
from tests.bags.making import random_bag
from tests.cli.running import marble

MALFORMED = {
    "list": "[]", "null": "null", "text": '"x"', "number": "1", "empty": "", "deep": "[" * 200_000 + "]" * 200_000,
    "deep object": '{"a":' * 200_000 + "1" + "}" * 200_000, "digits": '{"format": 1' + "0" * 5000 + "}",
    "nan": '{"format": NaN}', "inf": '{"bag_bytes": 1e999}', "twice": '{"format": 1, "format": 1}',
    "half a character": '{"slide_id": "\\ud800"}', "latin-1": b'{"a": "\xe9"}', "cut": '{"format"',
    "wrong types": '{"format": 2, "slide_id": [], "status": {}, "details": 3, "seal": 4}',
    "null fields": '{"format": null, "slide_id": null}', "format": '{"format": [[]]}', "binary": bytes(range(256)),
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> BagStore:
    made = BagStore(tmp_path / "bags")
    for i in range(3):
        made.save(random_bag(f"s{i}"))
    return made


def test_every_single_bit_of_a_record_and_of_store_json_is_guarded(
    store: BagStore, record_property: Callable[[str, object], None]
) -> None:
    rng = np.random.default_rng(0)
    for path in (store.record_path("s1"), store.root / "store.json"):
        whole = path.read_bytes()
        for bit in rng.choice(len(whole) * 8, 150, replace=False).tolist():
            data = bytearray(whole)
            data[bit // 8] ^= 1 << bit % 8
            path.write_bytes(bytes(data))
            record_property("cases", 1)
            assert verify_path(store.root).faults, (path.name, bit)
            with pytest.raises(MarbleError):
                _load(store.root)
        path.write_bytes(whole)
    assert verify_path(store.root).faults == []


def _load(root: Path) -> None:
    BagStore(root).load("s1")
    BagStore(root).common()


@pytest.mark.parametrize("name", ["s1.json", "store.json"])
@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_json_in_a_store_is_named_and_the_rest_is_checked(store: BagStore, kind: str, name: str) -> None:
    text = MALFORMED[kind]
    (store.root / name).write_bytes(text if isinstance(text, bytes) else str(text).encode())
    ended = marble("verify", store.root)
    assert ended.code == 1
    faults = [line for line in ended.output.splitlines() if line.startswith("fault: ")]
    assert any(name in line for line in faults)
    assert all(len(line) < 600 for line in faults)
    assert "4 checked" in ended.output


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_json_in_a_run_is_named(kind: str, tmp_path: Path) -> None:
    text = MALFORMED[kind]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_bytes(text if isinstance(text, bytes) else str(text).encode())
    ended = marble("verify", tmp_path)
    assert ended.code == 1
    assert "1 checked, 1 faults" in ended.output


def test_json_within_limits_is_what_the_standard_library_reads() -> None:
    for text in (
        '{"a": [1, 2.5, -3e-7, true, null, "\\u00e9 \\" [{"], "b": {}}',
        "[" * 60 + "]" * 60,
        '"\\ud83d\\ude00"',
    ):
        assert parse_json(text, where="here") == json.loads(text)


def test_a_store_of_the_first_format_is_read_with_a_note(store: BagStore) -> None:
    for path in store.root.glob("*.json"):
        fields = json.loads(path.read_bytes())
        del fields["seal"]
        fields["format"] = 1
        files.publish_json(path, fields)
    assert BagStore(store.root).load("s0").slide_id == "s0"
    ended = marble("verify", store.root)
    assert ended.code == 0
    assert "4 records of an earlier version carry no checksum" in ended.output
    fields["format"] = 2
    files.publish_json(store.root / "s0.json", fields)
    with pytest.raises(IntegrityError, match="checksum does not fit"):
        BagStore(store.root).record("s0")


def test_a_foreign_file_is_a_fault_and_no_record_of_an_earlier_version(store: BagStore) -> None:
    (store.root / "notes.json").write_text("{}")
    ended = marble("verify", store.root)
    assert (ended.code, "earlier version" in ended.output) == (1, False)
    assert f"fault: {store.root / 'notes.json'}: no record of MARBLE: it names no format. " in ended.output


def test_find_takes_the_folder_that_extract_was_given(store: BagStore, tmp_path: Path) -> None:
    assert BagStore.find(store.root).root == BagStore.find(tmp_path).root == store.root
    shutil.copytree(store.root, tmp_path / "other")
    with pytest.raises(InputError, match=r"several stores are here: bags, other.* Give one of them"):
        BagStore.find(tmp_path)
    with pytest.raises(InputError, match="no bags here"):
        BagStore.find(_empty(tmp_path))
    with pytest.raises(InputError, match="no such folder"):
        BagStore.find(tmp_path / "nowhere")


def _empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def test_cells_that_are_not_whole_and_ratios_that_are_none_are_refused() -> None:
    features: Any = np.ones((2, 3), np.float32)  # arrays are taken too
    array: Any = np.array
    with pytest.raises(BagError, match=r"cells must be whole numbers, got \[1\.5, 0\.0\] in row 1"):
        Level(features, array([[0, 0], [1.5, 0]]))
    assert Level(features, array([[0.0, 0.0], [1.0, 0.0]])).cells.tolist() == [[0, 0], [1, 0]]
    with pytest.raises(BagError, match="cells must be whole numbers"):
        Level(features, array([[0, 0], [2**31, 0]]))
    with pytest.raises(BagError, match="parent must be whole numbers"):
        Level(features, array([[0, 0], [1, 0]]), parent=array([0, np.nan]))
    for ratio in (0, -1, 1.5, 65):
        with pytest.raises(BagError, match="ratio must be a whole number in 1 to 64"):
            Bag("x", [Level(features, [[0, 0], [1, 0]]), Level(features, [[0, 0], [1, 0]], [0, 0], ratio)])  # type: ignore[arg-type]


def test_a_bag_cut_off_while_it_is_in_use_leaves_the_numbers_alone(store: BagStore) -> None:
    bag = store.load("s0")
    before = bag.finest.features.clone()
    with open(store.bag_path("s0"), "r+b") as file:
        file.truncate(10)
    assert bag.finest.features.equal(before)
