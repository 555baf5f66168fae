"""The store: what was saved comes back, anything else is refused by name."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from marble import files
from marble.bags import Bag, BagStore, EncoderIdentity, Provenance
from marble.bags import store as store_module
from marble.bags.record import file_stem
from marble.compute import locks
from marble.errors import BagError, InputError, IntegrityError, MarbleError
from tests.bags.making import random_bag


@pytest.fixture(autouse=True)
def _forget() -> None:
    store_module._verified.clear()


def _same(a: Bag, b: Bag) -> None:
    assert a.slide_id == b.slide_id
    assert a.provenance == b.provenance
    for x, y in zip(a.levels, b.levels, strict=True):
        assert torch.equal(x.features, y.features)
        assert torch.equal(x.cells, y.cells)
        assert x.ratio == y.ratio
        assert (x.parent is None) == (y.parent is None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("ratios", [(), (4,), (2, 4)])
def test_round_trip(tmp_path: Path, dtype: torch.dtype, ratios: tuple[int, ...]) -> None:
    store = BagStore(tmp_path)
    bag = random_bag("case/1 é", ratios=ratios, dtype=dtype)
    record = store.save(bag, {"missing_tiles": 0})
    _same(store.load("case/1 é"), bag)
    _same(store.load("case/1 é"), bag)  # the second time without hashing
    assert store.slide_ids() == ["case/1 é"]
    assert "case/1 é" in store
    assert "other" not in store
    assert record.levels[0].tokens == 5
    assert record.details == {"missing_tiles": 0}


def test_of_several_stores_none_that_does_not_fit_is_recommended(tmp_path: Path) -> None:
    for name in ("a", "b"):
        BagStore(tmp_path / name).save(random_bag())
    with pytest.raises(InputError, match=rf"several stores are here: a, b. Give one of them, for example {tmp_path}/a"):
        BagStore.find(tmp_path)
    other = Provenance(encoders=(EncoderIdentity(name="another", dim=8, input_px=256),))
    with pytest.raises(InputError, match=r"holds bags like the training bags: a, b. Give the slides themselves, or"):
        BagStore.find(tmp_path, like=other)


def test_equal_bags_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        BagStore(tmp_path / name).save(random_bag())
    for suffix in ("s.json", "s.safetensors", "store.json"):
        assert (tmp_path / "a" / suffix).read_bytes() == (tmp_path / "b" / suffix).read_bytes()


def test_loading_maps_the_file_and_writing_to_it_does_not_reach_the_disk(tmp_path: Path) -> None:
    store = BagStore(tmp_path)
    store.save(random_bag())
    before = store.bag_path("s").read_bytes()
    bag = store.load("s")
    bag.finest.features[:] = 0
    assert store.bag_path("s").read_bytes() == before


def test_ids_make_safe_distinct_names() -> None:
    ids = ["a", "A", "001", "1", "../etc/passwd", "..", ".", "-rf", "a\nb", "a/b", "a%2Fb", "é", "e\u0301", "x" * 300,
           "x" * 301, "store", "NA", "CON ", "a\\b", "\u202eabc"]  # fmt: skip
    names = [file_stem(one) for one in ids]
    assert len(set(names)) == len(ids)
    for name in names:
        assert "/" not in name
        assert name[0] not in ".-"
        assert len(name.encode()) < 200
        assert name != "store"


def encoded(slide: str, encoder: str) -> Bag:
    one = random_bag(slide)
    return Bag(slide, one.levels, Provenance(encoders=(EncoderIdentity(name=encoder, dim=8, input_px=256),)))


def test_mixed_encoders_are_refused_naming_both(tmp_path: Path) -> None:
    store = BagStore(tmp_path)
    store.save(encoded("a", "uni_v1"))
    with pytest.raises(BagError, match=r"provenance differs in 'encoders'.*uni_v1.*lite0") as caught:
        store.save(encoded("b", "lite0"))
    assert "store.json" in str(caught.value)
    other = BagStore(tmp_path / "other")
    other.save(encoded("b", "lite0"))
    for suffix in (".json", ".safetensors"):
        (tmp_path / f"b{suffix}").write_bytes((tmp_path / "other" / f"b{suffix}").read_bytes())
    with pytest.raises(BagError, match=r"b\.safetensors: provenance differs in 'encoders'"):
        store.load("b")


def test_float64_is_not_stored(tmp_path: Path) -> None:
    with pytest.raises(BagError, match="float16 or float32"):
        BagStore(tmp_path).save(random_bag(dtype=torch.float64))


def test_every_flipped_bit_is_found(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    store = BagStore(tmp_path)
    store.save(random_bag(coarse=2))
    for path in (store.bag_path("s"), store.record_path("s")):
        good = path.read_bytes()
        for at in range(0, len(good), max(1, len(good) // 120)):
            record_property("cases", 1)
            bad = bytearray(good)
            bad[at] ^= 1 << (at % 8)
            path.write_bytes(bytes(bad))
            store_module._verified.clear()
            try:
                loaded = store.load("s")
            except (MarbleError, UnicodeDecodeError):
                continue
            # A flip in a free-text field of the record changes no tensor; anything else must have been refused.
            assert path == store.record_path("s")
            _same(loaded, random_bag(coarse=2))
        path.write_bytes(good)


def test_a_file_changed_while_in_use_is_hashed_again(tmp_path: Path) -> None:
    store = BagStore(tmp_path)
    store.save(random_bag())
    store.load("s")
    path = store.bag_path("s")
    bad = bytearray(path.read_bytes())
    bad[-1] ^= 1
    path.write_bytes(bytes(bad))
    with pytest.raises(IntegrityError, match=r"s\.safetensors: bytes changed"):
        store.load("s")


def test_no_record_no_bag(tmp_path: Path) -> None:
    store = BagStore(tmp_path)
    store.save(random_bag())
    store.record_path("s").unlink()
    with pytest.raises(BagError, match=r"no bag of slide 's'.*marble extract"):
        store.load("s")
    store.note("t", "failed", "read", "truncated")
    with pytest.raises(BagError, match="slide has no bag: failed at read: truncated"):
        store.load("t")
    assert store.slide_ids() == []


# ---- files that are not what they claim ------------------------------------------------------------------------------

PICKLE = b"\x80\x04\x95" + b"\x00" * 40 + b"cposix\nsystem\n(S'touch pwned'\ntR."


def _header(body: Any, data: bytes = b"") -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return struct.pack("<Q", len(text)) + text + data


def _tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HOSTILE = {
    "pickle": PICKLE,
    "empty": b"",
    "seven bytes": b"\x00" * 7,
    "length 2^63": struct.pack("<Q", 2**63) + b"{}",
    "length beyond the file": struct.pack("<Q", 100) + b"{}",
    "not JSON": _header(b"{not json"),
    "a list": _header([1, 2]),
    "deep nesting": _header(b"[" * 100000),
    "duplicate key": _header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{}}', b"\0" * 4),
    "overlap": _header({"a": _tensor("F32", [1], 0, 4), "b": _tensor("F32", [1], 2, 6)}, b"\0" * 6),
    "gap": _header({"a": _tensor("F32", [1], 4, 8)}, b"\0" * 8),
    "out of the file": _header({"a": _tensor("F32", [2], 0, 8)}, b"\0" * 4),
    "trailing bytes": _header({"a": _tensor("F32", [1], 0, 4)}, b"\0" * 8),
    "shape bomb": _header({"a": _tensor("F32", [2**40], 0, 4)}, b"\0" * 4),
    "nothing, of any size": _header({"a": _tensor("F32", [2**63, 0], 0, 0)}),
    "65 dimensions": _header({"a": _tensor("F32", [1] * 65, 0, 4)}, b"\0" * 4),
    "negative": _header({"a": _tensor("F32", [-1], 0, -4)}, b""),
    "unknown dtype": _header({"a": _tensor("OBJ", [1], 0, 8)}, b"\0" * 8),
    "no metadata": save({"level0.features": torch.zeros(1, 2)}),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused_by_name(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = BagStore(tmp_path)
    record = store.save(random_bag())
    store.bag_path("s").write_bytes(HOSTILE[kind])
    # An attacker would also fix the hash, so the header checks have to hold alone.
    from marble import files

    changed = record.model_copy(update={"bag_sha256": files.sha256_bytes(HOSTILE[kind])})
    store._publish_record(changed)
    with pytest.raises(IntegrityError, match=r"s\.safetensors"):
        store.load("s")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9, 0.999])
def test_truncated_files_are_refused(tmp_path: Path, cut: float) -> None:
    store = BagStore(tmp_path)
    record = store.save(random_bag())
    data = store.bag_path("s").read_bytes()
    data = data[: int(len(data) * cut)]
    store.bag_path("s").write_bytes(data)
    with pytest.raises(IntegrityError, match=r"s\.safetensors: bytes changed"):
        store.load("s")
    from marble import files

    store._publish_record(record.model_copy(update={"bag_sha256": files.sha256_bytes(data)}))
    with pytest.raises(IntegrityError, match=r"s\.safetensors"):
        store.load("s")


def test_of_two_workers_that_bring_the_first_bags_only_one_says_what_the_store_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, publish = BagStore(tmp_path / "bags"), files.publish_json
    first, second = encoded("a", "uni_v1"), encoded("b", "lite0")
    refused: list[BagError] = []

    def other_worker() -> None:
        try:
            store.save(second)
        except BagError as error:
            refused.append(error)

    beside = threading.Thread(target=other_worker)

    def while_another_comes(path: Path, value: object) -> Path:
        if path.name == "store.json" and beside.ident is None:
            beside.start()
            beside.join(timeout=1)  # held up, it ends only later; if it is not, it is done long before
        return publish(path, value)

    monkeypatch.setattr(files, "publish_json", while_another_comes)
    store.save(first)
    beside.join()
    assert ["provenance differs in 'encoders'" in str(error) for error in refused] == [True]
    assert store.slide_ids() == ["a"]
    assert not list((tmp_path / "bags").glob(".*.lock"))


def test_the_lock_of_a_process_killed_as_it_set_the_store_goes_with_the_next_bag(tmp_path: Path) -> None:
    store = BagStore(tmp_path)
    store.save(random_bag("s"))
    left = tmp_path / f".store{locks.SUFFIX}"
    left.write_text(json.dumps(vars(locks.Holder.this_process()) | {"started": "1"}))  # a process of before
    store.save(random_bag("t"))
    assert not left.exists()
    left.write_text(json.dumps(vars(locks.Holder.this_process())))  # one that lives keeps it
    store.save(random_bag("u"))
    assert left.exists()
