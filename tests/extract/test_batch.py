"""A batch: one status for each slide, the same bytes wherever it runs, and whatever any slide does."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from marble.compute import Failed, Processes
from marble.errors import InputError
from marble.extract import BatchFacts, BatchProgress, Machine, Progress, extract_many, ids_of, plan, store_for
from marble.files import sha256_file
from tests.extract.making import spec_of, tree
from tests.extract.mutants import mutated

ONE_THREAD = Machine(threads=1)


def test_this_process_or_two_others_give_the_same_bytes(some_slides: list[Path], tmp_path: Path) -> None:
    spec = spec_of(encoders=("lite0", "colour"), tile_px=128)
    for name, executor in (("inline", None), ("two", Processes(2))):
        summary = extract_many(some_slides, spec, tmp_path / name, executor=executor, machine=ONE_THREAD)
        assert summary.ok
        assert [outcome.status for outcome in summary.outcomes] == ["ok"] * 3
        assert summary.unverified == 3
    assert tree(tmp_path / "inline") == tree(tmp_path / "two")
    assert len(tree(tmp_path / "inline")) == 3 * 2 + 2


def test_progress_and_summary_cover_every_slide(some_slides: list[Path], tmp_path: Path) -> None:
    told: list[BatchProgress] = []
    tiles: list[int] = []

    def heard(at: BatchProgress | Progress) -> None:
        if isinstance(at, Progress):
            tiles.append(at.done)
        else:
            told.append(at)

    missing = tmp_path / "gone.tiff"
    summary = extract_many([*some_slides, missing], spec_of(), tmp_path / "bags", on_progress=heard)
    assert [p.slides_done for p in told] == [1, 2, 3, 4]
    assert all(p.slides == 4 for p in told)
    assert told[-1].seconds_left == 0
    assert told[-1].tiles == sum(outcome.tiles for outcome in summary.outcomes) > 0
    assert tiles
    assert [outcome.path for outcome in summary.outcomes] == [*some_slides, missing]
    assert (summary.count("ok"), summary.count("failed"), summary.ok) == (3, 1, False)
    with pytest.raises(InputError, match="no slides"):
        extract_many([], spec_of(), tmp_path)


def test_slides_of_one_name_are_refused_and_the_store_is_left_alone(some_slides: list[Path], tmp_path: Path) -> None:
    first, second = some_slides[:2]
    extract_many([first, second], spec_of(), tmp_path / "bags")
    before = tree(tmp_path / "bags")
    twin = tmp_path / "elsewhere" / first.name
    twin.parent.mkdir()
    shutil.copyfile(second, twin)
    summary = extract_many([first, twin, second], spec_of(), tmp_path / "bags")
    assert [outcome.status for outcome in summary.outcomes] == ["failed", "failed", "ok"]
    assert str(twin) in str(summary.outcomes[0].reason)
    assert tree(tmp_path / "bags") == before


def test_a_manifest_refuses_what_is_not_in_it(some_slides: list[Path], tmp_path: Path) -> None:
    good, changed, unlisted = some_slides
    manifest = tmp_path / "manifest.csv"
    manifest.write_text(f"sha256,file\n{sha256_file(good)},{good.name}\n{'0' * 64},{changed.name}\n")
    summary = extract_many([good, changed, unlisted], spec_of(), tmp_path / "bags", facts=BatchFacts(manifest=manifest))
    assert [outcome.status for outcome in summary.outcomes] == ["ok", "failed", "failed"]
    assert [outcome.stage for outcome in summary.outcomes[1:]] == ["verify", "verify"]
    assert summary.outcomes[0].verified
    assert summary.unverified == 0


def test_pixel_sizes_from_a_table(some_slides: list[Path], tmp_path: Path) -> None:
    table = tmp_path / "mpp.csv"
    table.write_text(f"wsi,mpp\n{some_slides[0].name},0.25\n")
    extract_many(some_slides[:2], spec_of(), tmp_path / "bags", facts=BatchFacts(mpp_csv=table))
    store = store_for(tmp_path / "bags", spec_of())
    sizes = [store.load(path.stem).provenance.slide.mpp for path in some_slides[:2]]  # type: ignore[union-attr]
    assert sizes == [0.25, 0.5]


def test_mutated_slides_cost_only_themselves(some_slides: list[Path], tmp_path: Path) -> None:
    clean = extract_many(some_slides, spec_of(), tmp_path / "clean")
    assert clean.ok
    bad = mutated(some_slides[0], tmp_path / "bad", count=20, seed=1)
    slides = [path for pair in zip(bad, some_slides, strict=False) for path in pair] + bad[3:]
    summary = extract_many(
        slides, spec_of(), tmp_path / "mixed", executor=Processes(2, timeout_s=120), machine=ONE_THREAD
    )
    assert len(summary.outcomes) == 23
    assert not summary.ok
    for outcome in summary.outcomes:
        assert outcome.status == "ok" or (outcome.stage and outcome.reason)
    before, after = tree(tmp_path / "clean"), tree(tmp_path / "mixed")
    assert {name: digest for name, digest in after.items() if "bad" not in name} == before


def test_the_plan_agrees_with_what_is_then_done(some_slides: list[Path], tmp_path: Path) -> None:
    spec = spec_of()
    broken = tmp_path / "broken.tiff"
    broken.write_bytes(b"II*\0")
    estimate = plan([*some_slides, broken], spec)
    summary = extract_many(some_slides, spec, tmp_path / "bags")
    assert sum(estimate.tiles) == sum(outcome.tiles for outcome in summary.outcomes)
    on_disk = sum(path.stat().st_size for path in summary.store.glob("*.safetensors"))
    headers = on_disk - estimate.bytes  # names, shapes and provenance of three bags
    assert 0 < headers < 3 * 4096
    assert estimate.seconds > 0
    assert [path for path, _ in estimate.unusable] == [broken]
    assert (estimate.slides, estimate.sampled) == (4, 4)
    assert np.allclose(
        plan(some_slides[:1] * 10, spec, sample=2).tiles, 5 * np.array(plan(some_slides[:1] * 2, spec).tiles)
    )


KILLED = """
import os, signal, sys
from pathlib import Path
from marble.bags.store import BagStore
from marble.extract import BatchProgress, extract_many
from tests.extract.making import spec_of

moment, store, *slides = sys.argv[1:]
if moment == "between bag and record":
    publish, seen = BagStore._publish_record, []
    def die(self, record):
        seen.append(record)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        publish(self, record)
    BagStore._publish_record = die
def heard(progress):
    if isinstance(progress, BatchProgress):
        slide(progress)
    elif moment == "while encoding" and progress.slide_id == "slide-1" and progress.done > progress.total / 2:
        os.kill(os.getpid(), signal.SIGKILL)
def slide(progress):
    if moment == "while writing" and progress.slides_done == 1:
        import marble.files
        marble.files.os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
sys.exit(0 if extract_many([Path(s) for s in slides], spec_of(), store, on_progress=heard).ok else 1)
"""


def test_killed_at_any_moment_and_resumed_the_store_is_the_same(some_slides: list[Path], tmp_path: Path) -> None:
    extract_many(some_slides, spec_of(), tmp_path / "whole")
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    store = tmp_path / "killed"
    for moment in ("while encoding", "while writing", "between bag and record"):
        command = [sys.executable, str(script), moment, str(store), *map(str, some_slides)]
        ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        assert ended.returncode == -signal.SIGKILL, (moment, ended.stderr)
        assert tree(store) != tree(tmp_path / "whole")
        extract_many(some_slides, spec_of(), store)
        assert tree(store) == tree(tmp_path / "whole"), moment
        shutil.rmtree(store)


def test_a_damaged_record_and_a_dead_worker_cost_only_their_slide(some_slides: list[Path], tmp_path: Path) -> None:
    spec = spec_of()
    assert extract_many(some_slides, spec, tmp_path / "bags", machine=ONE_THREAD).ok
    store = store_for(tmp_path / "bags", spec)
    store.record_path("slide-1").write_bytes(b'{"format": [')

    class Dies:
        """Every worker dies with its item."""

        cores_each = 1

        def map(self, fn: object, items: object) -> object:
            return (Failed(item, "its worker died 2 times (signal SIGSEGV)") for item in items)  # type: ignore[attr-defined]

    summary = extract_many(some_slides, spec, tmp_path / "bags", executor=Dies())  # type: ignore[arg-type]
    assert [(o.status, o.stage) for o in summary.outcomes] == [("failed", "worker")] * 3
    assert store.record("slide-1").stage == "worker"
    assert store.record("slide-0").status == "ok"  # its bag was and stays whole


def test_a_failing_second_attempt_leaves_a_whole_bag_alone(some_slides: list[Path], tmp_path: Path) -> None:
    bags, table = tmp_path / "bags", tmp_path / "sizes.csv"
    assert extract_many(some_slides[:1], spec_of(), bags, machine=ONE_THREAD).ok
    before = tree(bags)
    table.write_text("wsi,mpp\nslide-0,20\n")  # far too coarse for what is asked
    again = extract_many(some_slides[:1], spec_of(), bags, machine=ONE_THREAD, facts=BatchFacts(mpp_csv=table))
    assert [outcome.status for outcome in again.outcomes] == ["failed"]
    assert tree(bags) == before


def test_the_bag_of_another_slide_is_not_replaced_unless_asked(some_slides: list[Path], tmp_path: Path) -> None:
    spec, bags = spec_of(), tmp_path / "bags"
    for site, slide in (("A", some_slides[0]), ("B", some_slides[1])):
        (tmp_path / site).mkdir()
        shutil.copyfile(slide, tmp_path / site / "case1.tiff")
    ours, theirs = tmp_path / "A" / "case1.tiff", tmp_path / "B" / "case1.tiff"
    assert extract_many([ours], spec, bags, machine=ONE_THREAD).ok
    before = tree(bags)
    refused = extract_many([theirs], spec, bags, machine=ONE_THREAD)
    assert not refused.ok
    assert "already holds a bag of another slide" in str(refused.outcomes[0].reason)
    assert tree(bags) == before
    theirs.rename(tmp_path / "B" / "gone.tiff")
    assert not extract_many([theirs], spec, bags, machine=ONE_THREAD).ok  # nor by a file that is not there
    assert tree(bags) == before
    (tmp_path / "B" / "gone.tiff").rename(theirs)
    # The same slide, moved: known by its content, and made again only if that cannot be told from its time.
    moved = tmp_path / "C" / "case1.tiff"
    moved.parent.mkdir()
    shutil.copy2(ours, moved)
    assert extract_many([moved], spec, bags, machine=ONE_THREAD).ok
    assert tree(bags) == before
    ids = ids_of([ours, theirs], [tmp_path / "A", tmp_path / "B"], "path")
    assert sorted(ids.values()) == ["A__case1", "B__case1"]
    assert extract_many([ours, theirs], spec, bags, machine=ONE_THREAD, facts=BatchFacts(ids=ids)).ok
    assert extract_many([theirs], spec, bags, machine=ONE_THREAD, replace=True).ok
    assert tree(bags) != before
