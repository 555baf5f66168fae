"""A run has one answer about a slide: asked alone or among others, again, and by a process that just started."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from marble.bags.augment import generator, shuffled
from marble.bags.bag import Bag
from marble.bags.store import BagStore
from marble.training.run import execute
from tests.reliability.scale import scaled
from tests.training.jobs import plan

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(1800)]
TOGETHER = 8
ASK = """
import json, sys
from marble.bags.store import BagStore
from marble.prediction import Predictor
run, wanted = sys.argv[1], json.loads(sys.argv[2])
predictor, said = Predictor(run), []
for store, slides in wanted:
    bits = {}
    for slide in slides:
        found = predictor.answer(BagStore(store).load(slide)).prediction
        tensors = (found.logits, found.logits_by_order, found.attention, found.embedding)
        bits[slide] = [tensor.numpy().tobytes().hex() for tensor in tensors]
    said.append(bits)
print(json.dumps(said))
"""
Bits = dict[str, list[str]]  # by slide, every bit of what is said of it


def asked(run: str, *wanted: tuple[Path, list[str]]) -> list[Bits]:
    """What a new process says about slides of stores, one store after the other."""
    words = [sys.executable, "-c", ASK, run, json.dumps([(str(store), slides) for store, slides in wanted])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[Bits] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("model", ['{ name = "marble", d_state = 8 }', '{ name = "abmil", hidden = 16 }'])
def test_a_slide_has_one_answer_alone_among_others_and_after_a_restart(
    model: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    planned = plan(tmp_path, models=f"[{model}]", epochs=1)[0]
    execute(planned)
    bags = list(BagStore(planned.job.store))[:TOGETHER]
    names = [bag.slide_id for bag in bags]
    orders = [tmp_path / f"order-{number}" for number in range(scaled(20))]
    for number, folder in enumerate(orders):
        for bag in bags:
            other = shuffled(bag, generator("one-answer", number, bag.slide_id))
            BagStore(folder).save(Bag(bag.slide_id, other.levels, bag.provenance))
    together = asked(planned.folder, *((folder, names) for folder in orders))
    first = together[0]
    assert len({tuple(bits) for bits in first.values()}) == len(first) == TOGETHER  # they do differ from each other
    assert all(said == first for said in together)
    after = asked(planned.folder, *((folder, names[::-1]) for folder in orders[::-1]))
    assert all(said == first for said in after)
    for slide in names[:2]:  # a process that is asked about nothing else
        assert asked(planned.folder, (orders[-1], [slide])) == [{slide: first[slide]}]
    record_property("cases", 2 * len(orders) * len(names) + 2)
