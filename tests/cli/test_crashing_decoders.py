"""A slide whose decoder crashes or never ends, given to every verb that reads slides: one line, and the rest goes on.

The verbs run in a process of their own, in which a reader is put before the others that kills or halts whatever process
it works in, if the slide's name says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.viewer.world import SPEC, World, make_world

READER = """
import os, signal, time

def open_crashing(path, claims):
    if path.name.startswith("segv"):
        os.kill(os.getpid(), signal.SIGSEGV)
    return None
"""
CUSTOM = """
from marble.slides.readers import registry
registry.READERS = ("crashing:open_crashing", *registry.READERS)
"""
COMMANDS = """
import json, sys
from tests.cli.commands import marble
for words in json.loads(sys.argv[1]):
    ended = marble(*words)
    print(json.dumps([ended.code, ended.out, ended.err]), flush=True)
"""
VIEWER = """
import json, sys
from pathlib import Path
from marble.viewer.app import create_app
from marble.viewer.registry import build_registry, key_of
from tests.viewer.client import get
registry = build_registry(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
app = create_app(registry, readers=1)
for name in ("S5", "segv", "segv", "S5"):
    reply = get(app, f"/api/slides/{key_of('slide', name)}/pixels/11/{len(name)}/1")
    print(json.dumps([reply.status, reply.headers["content-type"], reply.body.decode("latin-1")[:200]]))
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A run, and a folder in which one of three slides kills whatever decodes it."""
    made = make_world(tmp_path_factory.mktemp("crash"), models=("abmil",))
    (made.root / "mixed").mkdir()
    for name, source in (("S4", "S4"), ("segv", "S3"), ("S5", "S5")):
        shutil.copy(made.slides / f"{source}.tiff", made.root / "mixed" / f"{name}.tiff")
    return made


def run(script: str, folder: Path, *words: object) -> list[Any]:
    """What a script prints, a line each, in a process whose decoders crash."""
    (folder / "sitecustomize.py").write_text(CUSTOM)
    (folder / "crashing.py").write_text(READER)
    paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, "-c", script, *map(str, words)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")]


def test_every_verb_that_reads_slides_outlives_a_decoder_that_crashes(world: World, tmp_path: Path) -> None:
    mixed, bad, model = world.root / "mixed", world.root / "mixed" / "segv.tiff", world.run("abmil")
    spec = tmp_path / "spec.toml"
    spec.write_text(SPEC.to_toml())
    commands: list[tuple[object, ...]] = [
        ("tile", mixed, "--out", tmp_path / "tiles", "--spec", spec),
        ("plan", mixed, "--spec", spec),
        ("extract", mixed, "--store", tmp_path / "bags", "--spec", spec),
        ("predict", model, mixed, "--out", tmp_path / "answers.csv"),
        ("heatmap", model, bad, "--out", tmp_path / "maps", "--size", 64),
    ]
    said = run(COMMANDS, tmp_path, json.dumps([[str(word) for word in command] for command in commands]))
    died = "its worker died 2 times (signal SIGSEGV)"
    assert [code for code, _, _ in said] == [1, 0, 1, 1, 2]
    for _, _, err in said:
        (line,) = [line for line in err.splitlines() if died in line]
        assert line.count("segv.tiff") == 1
        assert "Traceback" not in err
    assert sorted(path.name for path in (tmp_path / "tiles").glob("*.png")) == ["S4.png", "S5.png"]
    assert "3 slides, 3 of them looked at" in said[1][1]
    rows = (tmp_path / "answers.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["slide_id", "S4", "S5"]
    assert not (tmp_path / "maps").exists() or not list((tmp_path / "maps").iterdir())


def test_the_viewer_outlives_a_decoder_that_crashes(world: World, tmp_path: Path) -> None:
    bags = tmp_path / "bags"
    shutil.copytree(world.store.root, bags / world.store.root.name)
    _rename(bags / world.store.root.name, "S3", "segv")
    good, bad, again, after = run(VIEWER, tmp_path, world.runs, world.root / "mixed", bags / world.store.root.name)
    assert good[:2] == after[:2] == [200, "image/jpeg"]
    assert bad == again
    assert bad[0] == 422
    assert json.loads(bad[2]) == {"error": "cannot be decoded: its worker died 2 times (signal SIGSEGV)"}


def _rename(root: Path, old: str, new: str) -> None:
    """The bag of a slide under another id."""
    from marble.bags.bag import Bag
    from marble.bags.store import BagStore

    store = BagStore(root)
    bag = store.load(old)
    store.save(Bag(new, bag.levels, bag.provenance))
