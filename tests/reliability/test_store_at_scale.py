"""`verify` over a thousand bags, and four writers of one store: every planted fault, no false alarm, no lost slide."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from marble import files
from marble.bags import BagStore
from marble.compute import locks
from marble.extract import Machine, extract_many
from marble.synthetic.slides import write_slide
from marble.verify import verify_path
from tests.bags.making import random_bag
from tests.cli.running import marble
from tests.extract.making import spec_of, tree
from tests.reliability.scale import scaled

WRITER = """
import sys
from collections.abc import Callable
from pathlib import Path
from marble.extract import Machine, extract_many
from tests.extract.making import spec_of

store, *slides = sys.argv[1:]
summary = extract_many([Path(s) for s in slides], spec_of(), store, machine=Machine(threads=1))
sys.exit(0 if summary.ok else 1)
"""


@pytest.mark.reliability
@pytest.mark.timeout(3600)
def test_verify_finds_all_of_25_faults_among_a_thousand_bags_and_no_other(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    count, faults = scaled(1000), 25
    record_property("cases", count)
    store = BagStore(tmp_path / "bags")
    for i in range(count):
        store.save(random_bag(f"s{i:04d}"))
    clean = marble("verify", store.root)
    assert (clean.code, f"{count + 1} checked, 0 faults" in clean.output) == (0, True), clean.output
    rng = np.random.default_rng(0)
    planted = [f"s{i:04d}" for i in rng.choice(count, faults, replace=False)]
    sound = next(f"s{i:04d}" for i in range(count) if f"s{i:04d}" not in planted)
    for number, slide in enumerate(planted):
        bag, record = store.bag_path(slide), store.record_path(slide)
        path = (bag, record)[number % 2]
        data = bytearray(path.read_bytes())
        kind = number // 2 % 4
        if kind == 0:
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
            path.write_bytes(bytes(data))
        elif kind == 1:
            path.write_bytes(bytes(data[: int(rng.integers(len(data)))]))
        elif kind == 2:
            path.unlink()
        else:
            other = store.bag_path(sound) if path is bag else store.record_path(sound)
            path.write_bytes(other.read_bytes())
    ended = marble("verify", store.root)
    named = [line for line in ended.output.splitlines() if line.startswith("fault: ")]
    assert ended.code == 1
    assert len(named) == faults, ended.output
    assert all(any(slide in line for line in named) for slide in planted)


@pytest.mark.reliability
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_verify_takes_little_more_than_hashing(tmp_path: Path, dtype: torch.dtype) -> None:
    """In processor time, which a busy machine does not stretch: half a GiB a second, or half of SHA-256's rate."""
    store = BagStore(tmp_path)
    for number in range(6):
        store.save(random_bag(f"s{number}", coarse=60, ratios=(16,), dim=1024, dtype=dtype))
    bags = sorted(store.root.glob("*.safetensors"))
    gib = sum(path.stat().st_size for path in bags) / 2**30
    whole, hashing = [], []
    for _ in range(5):
        begin = time.process_time()
        verdict = verify_path(store.root)
        between = time.process_time()
        for path in bags:
            files.sha256_file(path)
        whole.append(between - begin)
        hashing.append(time.process_time() - between)
        assert (verdict.checked, verdict.faults) == (len(bags) + 1, [])
    rate, at_most = gib / min(whole), gib / min(hashing)  # the least disturbed of five
    assert rate >= min(0.5, 0.5 * at_most), (rate, at_most)  # GiB a second


@pytest.mark.reliability
@pytest.mark.timeout(3600)
def test_four_writers_of_one_store_leave_what_one_leaves(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("cases", scaled(50))
    slides = [write_slide(tmp_path / f"s{i}.tiff", (512, 384), mpp=0.5, seed=i, pieces=1) for i in range(6)]
    assert extract_many(slides, spec_of(), tmp_path / "one", machine=Machine(threads=1)).ok
    expected = tree(tmp_path / "one")
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for number in range(scaled(50)):
        store = tmp_path / f"store-{number}"
        order = np.random.default_rng(number)
        writers = [
            subprocess.Popen(
                [sys.executable, str(script), str(store), *(str(slides[i]) for i in order.permutation(len(slides)))],
                env=environment,
            )
            for _ in range(4)
        ]
        assert [writer.wait() for writer in writers] == [0] * 4
        assert tree(store) == expected, number
        shutil.rmtree(store)


@pytest.mark.reliability
def test_stale_locks_are_taken_over_and_live_ones_never(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for number in range(scaled(50)):
        lock = tmp_path / f".{number}.lock"
        me = locks.Holder.this_process()
        gone = locks.Holder(me.host, me.name, dead.pid, "0", me.token)
        for holder, age, is_live in (
            (gone, 0, False), (me, 1e6, True), (locks.Holder("f" * 16, "node", 7, "0", "t"), locks.STALE_S / 2, True),
            (locks.Holder("f" * 16, "node", 7, "0", "t"), locks.STALE_S + 5, False),
        ):  # fmt: skip
            assert locks._claim(lock, holder)
            now = lock.stat().st_mtime
            os.utime(lock, (now - age, now - age))
            try:
                with locks.hold(lock, "x"):
                    assert not is_live
            except locks.BusyError:
                assert is_live
                lock.unlink()
