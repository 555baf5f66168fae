"""What is in a store is listed whatever one of its files is like; the verbs that read stores go on with the rest."""

from __future__ import annotations

from pathlib import Path

from marble.bags.store import BagStore
from marble.bags.survey import survey
from tests.bags.making import random_bag
from tests.cli.running import marble


def test_damaged_lost_and_exchanged_records_are_named_and_hide_nothing(tmp_path: Path) -> None:
    store = BagStore(tmp_path / "bags")
    for slide in "abcde":
        store.save(random_bag(slide))
    store.note("f", "failed", "read", "truncated")
    store.record_path("b").write_text("{")
    store.record_path("c").unlink()
    store.record_path("d").write_bytes(store.record_path("e").read_bytes())
    found = dict(survey(store))
    assert list(found) == ["a", "b", "d", "e", "c"]
    assert found["a"] is None
    assert found["e"] is None
    for slide, says in (("b", "b.json"), ("c", "no record says"), ("d", "record belongs to slide 'e'")):
        assert says in str(found[slide])
    ended = marble("export", store.root, "--out", tmp_path / "out")
    assert ended.code == 1
    assert [line.rpartition("/")[2][0] for line in ended.failed if "does not know" not in line] == ["b", "d", "c"]
