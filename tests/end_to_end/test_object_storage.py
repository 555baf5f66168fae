"""Slides to predictions with stores and runs on object storage: the bytes of the same on a disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marble import storage
from marble.compute import Inline
from marble.experiment import Experiment
from marble.extract import extract_many
from marble.files import sha256_bytes
from marble.synthetic.slides import write_slide
from marble.training.protocol import run_all
from tests.cli.commands import marble
from tests.extract.making import spec_of, tree
from tests.training.test_fit import RESULT

fsspec = pytest.importorskip("fsspec")
EXPERIMENT = """
cohort = "cohort.csv"
bags = {{ store = "{store}" }}
task = "classification"
split = {{ scheme = "kfold", folds = 3, repeats = 1 }}
train = {{ recipe = "common", epochs = 2, warmup = 1, lr = 2e-3, orders = 2, val_orders = 1 }}
models = [{{ name = "abmil", hidden = 16, label = "abmil" }}]
baselines = []
"""
SLIDES = 12


@pytest.fixture(scope="module")
def slides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Slides of two classes, and the table that says which."""
    folder = tmp_path_factory.mktemp("cohort")
    rows = ["patient_id,slide_id,label"]
    for number in range(SLIDES):
        write_slide(folder / "slides" / f"s{number}.tiff", (1536, 1024), mpp=0.5, seed=number, pieces=2)
        rows.append(f"p{number},s{number},{'ab'[number % 2]}")
    (folder / "cohort.csv").write_text("\n".join(rows) + "\n")
    return folder


def objects(system: Any, root: str) -> dict[str, str]:
    """Every object below a key with its hash."""
    found = system.find(root)
    return {name.partition(f"{root}/")[2]: sha256_bytes(system.cat_file(name)) for name in found}


def results(found: dict[str, str]) -> dict[str, str]:
    """What does not tell how long it took."""
    return {name: digest for name, digest in found.items() if name.rpartition("/")[2] in RESULT}


def experiment(slides: Path, store: str, name: str) -> Path:
    path = slides / f"{name}.toml"
    path.write_text(f'name = "tiny"\n{EXPERIMENT.format(store=store)}')
    return path


def test_in_memory(slides: Path, tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted((slides / "slides").iterdir())
    there = storage.location("memory://bucket/bags")
    assert extract_many(paths, spec_of(), tmp_path / "bags").ok
    assert extract_many(paths, spec_of(), there).ok
    assert objects(memory, "/bucket/bags") == tree(tmp_path / "bags")

    here = Experiment.load(experiment(slides, str(tmp_path / "bags"), "here"))
    assert all(outcome.ok for outcome in run_all(here.plan(tmp_path / "runs"), Inline()))
    monkeypatch.setenv(storage.CACHE, str(tmp_path / "elsewhere"))  # another machine, whose cache is empty
    remote = Experiment.load(experiment(slides, "memory://bucket/bags", "there"))
    planned = remote.plan(storage.location("memory://bucket/runs"))
    assert planned[0].folder.startswith("memory://bucket/runs/tiny/")
    assert planned[0].job.store.startswith("memory://bucket/bags/")
    assert all(outcome.ok for outcome in run_all(planned, Inline()))
    found = results(objects(memory, "/bucket/runs"))
    assert len(found) == 3 * len(RESULT)
    assert found == results(tree(tmp_path / "runs"))
    assert not [name for name in memory.find("/bucket/runs") if "checkpoints" in name]

    monkeypatch.setenv(storage.CACHE, str(tmp_path / "third"))
    ours, theirs = tmp_path / "here.csv", "memory://bucket/answers.csv"
    flags = ["--allow-training-slides", "--out"]
    assert marble("predict", tmp_path / "runs" / "tiny" / "abmil", tmp_path / "bags", *flags, ours).code == 0
    ended = marble("predict", "memory://bucket/runs/tiny/abmil", "memory://bucket/bags", *flags, theirs)
    assert ended.code == 0, ended.err
    assert memory.cat_file("/bucket/answers.csv") == ours.read_bytes()
    absent = marble("predict", "memory://bucket/absent", "memory://bucket/bags")
    assert absent.code == 2
    assert "error: memory://bucket/absent: no such folder of a run" in absent.err


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """A server that speaks S3, on loopback, and a bucket on it."""
    server_module = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        system = fsspec.filesystem("s3", use_listings_cache=False)
        system.mkdir("bucket")
        yield system
    server.stop()


def extract(slides: Path, store: object) -> list[object]:
    settings = ["--magnifications", "5,20", "--tile-px", 64, "--encoder", "colour"]
    return ["extract", slides / "slides", "--store", store, *settings]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_on_a_server_that_speaks_s3(slides: Path, tmp_path: Path, s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(storage.CACHE, str(tmp_path / "cache"))
    assert marble(*extract(slides, tmp_path / "bags")).code == 0
    ended = marble(*extract(slides, "s3://bucket/bags"), "--workers", 2)
    assert ended.code == 0, ended.err
    assert "s3://bucket/bags/" in "".join(ended.out.split())  # a narrow table folds its title
    assert objects(s3, "bucket/bags") == tree(tmp_path / "bags")

    monkeypatch.setenv(storage.CACHE, str(tmp_path / "elsewhere"))
    here = experiment(slides, str(tmp_path / "bags"), "here")
    there = experiment(slides, "s3://bucket/bags", "there")
    assert marble("run", here, "--out", tmp_path / "runs").code == 0
    ended = marble("run", there, "--out", "s3://bucket/runs", "--workers", 2)
    assert ended.code == 0, ended.err
    assert results(objects(s3, "bucket/runs")) == results(tree(tmp_path / "runs"))
    table = "tiny/report/table.csv"
    assert s3.cat_file(f"bucket/runs/{table}") == (tmp_path / "runs" / table).read_bytes()  # the ids of runs, too

    monkeypatch.setenv(storage.CACHE, str(tmp_path / "third"))
    ours, flags = tmp_path / "here.csv", ["--allow-training-slides", "--out"]
    assert marble("predict", tmp_path / "runs" / "tiny" / "abmil", tmp_path / "bags", *flags, ours).code == 0
    asked = ["predict", "s3://bucket/runs/tiny/abmil", "s3://bucket/bags", *flags, "s3://bucket/answers.csv"]
    assert marble(*asked).code == 0
    assert s3.cat_file("bucket/answers.csv") == ours.read_bytes()


#: ends at the n-th object it puts, before or after
KILLED = """
import os, signal, sys
from pathlib import Path
from marble import storage
from marble.compute import Inline
from marble.extract import extract_many
from tests.extract.making import spec_of

number, when, store, *slides = sys.argv[1:]
left, put = int(number), storage.put

def put_or_die(path, source):
    global left
    left -= 1
    if left == 0 and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    tag = put(path, source)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return tag

storage.put = put_or_die
extract_many([Path(slide) for slide in slides], spec_of(), store)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_around_every_upload_nothing_half_written_is_read(
    slides: Path, tmp_path: Path, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before and after each upload; then, on a machine without a cache, to its end."""
    paths = sorted((slides / "slides").iterdir())[:3]
    assert extract_many(paths, spec_of(), tmp_path / "bags").ok
    expected = tree(tmp_path / "bags")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    for number, when in [(n, when) for n in range(1, len(expected) + 1) for when in ("before", "after")]:
        key = f"bucket/killed-{number}-{when}"
        words = [sys.executable, "-c", KILLED, str(number), when, f"s3://{key}", *map(str, paths)]
        cache = {storage.CACHE: str(tmp_path / f"cache-{number}-{when}")}
        assert subprocess.run(words, env=environment | cache, check=False).returncode == -signal.SIGKILL
        monkeypatch.setenv(storage.CACHE, str(tmp_path / f"reader-{number}-{when}"))
        found = objects(s3, key)
        assert len(found) == (number - 1 if when == "before" else number)
        assert all(expected[name] == digest for name, digest in found.items())
        records = [name for name in found if name.endswith(".json") and not name.endswith("store.json")]
        assert all(name.replace(".json", ".safetensors") in found for name in records)
        assert extract_many(paths, spec_of(), storage.location(f"s3://{key}")).ok
        assert objects(s3, key) == expected
