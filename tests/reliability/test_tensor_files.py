"""Attacks on bag files, all in one process: each is refused by name, and together they never take much memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(900)]
MIB = 2**20
LARGE_HEADER = 100 * MIB

#: peak memory is that of a process, so the process is new, and the largest attacks come last
ATTACKS = """
import json, resource, struct, sys
from pathlib import Path
from marble import files
from marble.bags.store import BagStore
from marble.errors import IntegrityError
from tests.bags.making import random_bag
from tests.bags.test_store import HOSTILE

store, size = BagStore(Path(sys.argv[1])), int(sys.argv[2])
record = store.save(random_bag())
good = store.bag_path("s").read_bytes()
store.load("s")


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def header(text):
    return struct.pack("<Q", len(text)) + text


def many_tensors():
    one = b'"%08d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    count = size // 60
    return header(b"{" + b",".join(one % number for number in range(count)) + b"}")


def large():
    yield "many tensors", many_tensors()
    yield "blanks", header(b" " * (size - 2) + b"{}")
    yield "one long name", header(b'{"' + b"a" * size + b'":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}')
    yield "long metadata", header(b'{"__metadata__":{"format":"' + b"m" * size + b'"}}')
    yield "brackets", header(b"[" * size)


def attack(name, data):
    path = store.bag_path("s")
    path.write_bytes(data)
    store._publish_record(record.model_copy(update={"bag_sha256": files.sha256_bytes(data)}))
    before, length = peak(), len(data)
    del data
    try:
        BagStore(store.root).load("s")
    except IntegrityError as error:
        return {"name": name, "bytes": length, "grew": peak() - before, "peak": peak(), "said": str(error)[:300]}
    raise SystemExit(f"{name} was taken")


cuts = {f"cut to {at}": good[: len(good) * at // 20] for at in range(20)}
seen = [attack(name, data) for name, data in {**HOSTILE, **cuts}.items()]
small = peak()
seen += [attack(name, data) for name, data in large()]
print(json.dumps({"small": small, "attacks": seen}))
"""


def test_attacks_on_tensor_files_are_refused_within_memory(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    command = [sys.executable, "-c", ATTACKS, str(tmp_path / "store"), str(LARGE_HEADER)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    attacks = found["attacks"]
    record_property("cases", len(attacks))
    assert [one["name"] for one in attacks if "s.safetensors" not in one["said"]] == []
    assert found["small"] < 1024 * MIB  # with torch and all that the package imports
    for one in attacks:  # the file itself may be mapped, and counts then
        assert one["grew"] <= one["bytes"] + 100 * MIB, one
    assert sum(one["bytes"] > LARGE_HEADER * 0.9 for one in attacks) == 5
