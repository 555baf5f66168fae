"""Attacks on bag files: each is refused by name, and takes little more memory than the file is long."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from marble import files
from marble.bags.store import BagStore
from marble.bags.tensors import MAX_HEADER_BYTES
from tests.bags.making import random_bag
from tests.bags.test_store import HOSTILE

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(900)]
MIB = 2**20
LARGE_HEADER = 100 * MIB
CUTS = 20
#: what all of MARBLE and one attack may take together, and what an attack may take beyond its file
MOST, BEYOND = 1024 * MIB, 100 * MIB

#: A child that was just forked begins with the memory its parent uses then, so its peak is one attack's alone.
LOADS = """
import json, os, resource, sys
from pathlib import Path
from marble.bags.store import BagStore
from marble.errors import IntegrityError
from tests.bags.making import random_bag

UNIT = 1 if sys.platform == "darwin" else 1024


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT


def told(store):
    if store.name == "control":  # what is measured is there
        return str(len(bytearray(os.urandom(2**20)) * 200))
    try:
        BagStore(store).load("s")
    except IntegrityError as error:
        return str(error)
    return "taken"


BagStore(sys.argv[1]).load("s")  # whatever is imported late is imported now
for store in sorted(Path(sys.argv[2]).iterdir()):
    child = os.fork()
    if child == 0:
        before, said = peak(), told(store)
        print(json.dumps({"name": store.name, "before": before, "peak": peak(), "said": said[:3000]}), flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, (store.name, status)
"""


def _header(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _many_tensors(size: int) -> bytes:
    one = b'"%08d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    count = size // (len(one % 0) + 1)
    return _header(b"{" + b",".join(one % number for number in range(count)) + b"}")


def _large(size: int) -> Iterator[tuple[str, bytes]]:
    """Headers of about so many bytes that ask for as much memory as JSON can."""
    empty = b'{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    yield "many tensors", _many_tensors(size)
    yield "long shape", _header(b'{"a":{"dtype":"F32","shape":[' + b"0," * (size // 2) + b'0],"data_offsets":[0,0]}}')
    yield "blanks", _header(b" " * (size - 2) + b"{}")
    yield "long name", _header(b'{"' + b"a" * size + b'":' + empty + b"}")
    yield "long metadata", _header(b'{"__metadata__":{"format":"' + b"m" * size + b'"}}')
    yield "brackets", _header(b"[" * size)


def _attacks(good: bytes) -> Iterator[tuple[str, bytes]]:
    yield from HOSTILE.items()
    yield from ((f"cut to {part} of {CUTS}", good[: len(good) * part // CUTS]) for part in range(CUTS))
    yield from ((f"{name}, 100 MiB", data) for name, data in _large(LARGE_HEADER))
    yield from ((f"{name}, just allowed", data) for name, data in _large(MAX_HEADER_BYTES - 200))


def test_attacks_on_tensor_files_are_refused_within_memory(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    good = BagStore(tmp_path / "good")
    record = good.save(random_bag())
    sizes = {}
    for name, data in _attacks(good.bag_path("s").read_bytes()):
        store = BagStore(tmp_path / "attacks" / name)
        store.save(random_bag())
        store.bag_path("s").write_bytes(data)  # an attacker would also mend the hash
        store._publish_record(record.model_copy(update={"bag_sha256": files.sha256_bytes(data)}))
        sizes[name] = len(data)
    (tmp_path / "attacks" / "control").mkdir()
    record_property("cases", len(sizes))
    command = [sys.executable, "-c", LOADS, str(good.root), str(tmp_path / "attacks")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}
    control = seen.pop("control")
    assert control["peak"] - control["before"] >= 200 * MIB
    assert set(seen) == set(sizes)
    for name, one in seen.items():
        assert "s.safetensors: " in one["said"], one
        assert len(one["said"]) < 1000, one  # one line, however long a name in the file is
        assert one["peak"] - one["before"] <= sizes[name] + BEYOND, one
        assert one["peak"] <= MOST, one
    assert sum(size > LARGE_HEADER * 0.9 for size in sizes.values()) == 6
