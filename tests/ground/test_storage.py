"""Objects are the truth, folders hold copies, and nothing is ever half there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from marble import files, storage
from marble.bags import BagStore
from marble.errors import InputError, IntegrityError, MarbleError, UnavailableError
from tests.bags.making import random_bag

fsspec = pytest.importorskip("fsspec")
URL = "memory://bucket/bags"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Go to another machine: nothing is cached there."""
    return lambda: monkeypatch.setenv(storage.CACHE, str(tmp_path / "elsewhere"))


def test_a_location_is_a_folder_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(storage.CACHE, str(tmp_path))
    path = storage.location("s3://bucket/a/b")
    assert path == tmp_path / "objects" / "s3" / "bucket" / "a" / "b"
    assert storage.location(Path("s3://bucket/a/b")) == path  # a Path drops a slash
    assert storage.address(path / "x.json") == "s3://bucket/a/b/x.json"
    assert storage.named(path) == "s3://bucket/a/b"
    assert storage.shown(f"{path}/x.json: gone") == "s3://bucket/a/b/x.json: gone"
    for plain in ("bags", "/data/bags", "C:/bags", "10:features"):
        assert storage.location(plain) == Path(plain)
        assert storage.address(Path(plain)) is None
    for wrong in ("s3://", "s3:///", "s3://bucket/../other"):
        with pytest.raises(InputError, match="names no folder"):
            storage.location(wrong)


def test_what_is_published_is_an_object_and_read_elsewhere(memory: Any, elsewhere: Any) -> None:
    files.publish_json(storage.location(f"{URL}/a.json"), {"x": 1})
    assert memory.cat_file("/bucket/bags/a.json") == b'{"x":1}\n'
    elsewhere()
    assert files.read_json(storage.location(f"{URL}/a.json")) == {"x": 1}
    with pytest.raises(InputError, match="no such file"):
        files.read_json(storage.location(f"{URL}/b.json"))


def test_a_copy_is_used_only_while_it_is_of_the_object_that_is_there(memory: Any, elsewhere: Any) -> None:
    path = storage.location(f"{URL}/a.json")
    files.publish_json(path, 1)
    memory.pipe_file("/bucket/bags/a.json", b"2\n")
    storage._here.clear()  # as in a new process
    assert files.read_json(path) == 2
    memory.rm_file("/bucket/bags/a.json")
    storage._here.clear()
    with pytest.raises(InputError, match="no such file"):
        files.read_json(path)
    assert not path.exists()


def test_an_unchanged_object_is_not_read_again(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = storage.location(f"{URL}/a.json")
    files.publish_json(path, 1)
    storage._here.clear()
    monkeypatch.setattr(type(memory), "cat_file", None)
    assert files.read_json(path) == 1
    storage.pull(path.parent)


def test_a_folder_is_pulled_without_its_tensors_and_forgets_what_is_gone(memory: Any, elsewhere: Any) -> None:
    root = storage.location(URL)
    for name in ("a.json", "b.json", "deep/c.csv", "a.safetensors"):
        files.publish(root / name, name)
    elsewhere()
    root = storage.location(URL)
    storage.pull(root)
    found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert found == {"a.json", "b.json", "deep/c.csv"}
    (root / "notes.txt").write_text("of this machine")
    memory.rm_file("/bucket/bags/b.json")
    storage.pull(root, again=True)
    assert {path.name for path in root.iterdir() if path.is_file()} == {"a.json", "notes.txt"}
    storage.fetch(root / "a.safetensors")
    assert (root / "a.safetensors").read_text() == "a.safetensors"


def test_a_folder_is_removed_there_too(memory: Any) -> None:
    root = storage.location(URL)
    files.publish_directory(root / "epoch-0001", lambda folder: (folder / "state.json").write_text("1"))
    files.publish(root / "kept.json", "1")
    files.remove_folder(root / "epoch-0001")
    assert memory.find("/bucket") == ["/bucket/bags/kept.json"]
    assert not (root / "epoch-0001").exists()


def test_records_of_a_folder_are_put_last(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    whole = type(memory).pipe_file

    def watched(self: Any, key: str, *rest: Any, **more: Any) -> Any:
        seen.append(key)
        return whole(self, key, *rest, **more)

    monkeypatch.setattr(type(memory), "pipe_file", watched)

    def fill(folder: Path) -> None:
        for name in ("a.json", "b.safetensors", "c.csv"):
            (folder / name).write_text(name)

    files.publish_directory(storage.location(URL) / "epoch-0001", fill)
    assert [key.rpartition("/")[2] for key in seen] == ["b.safetensors", "c.csv", "a.json"]


def test_an_upload_that_fails_leaves_neither_object_nor_copy(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = storage.location(f"{URL}/a.json")
    files.publish_json(path, 1)

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("the line is dead")

    monkeypatch.setattr(type(memory), "pipe_file", refuse)
    with pytest.raises(UnavailableError, match=r"memory://bucket/bags/a.json: cannot be reached: the line is dead"):
        files.publish_json(path, 2)
    storage._here.clear()
    assert files.read_json(path) == 1
    assert [file.name for file in path.parent.iterdir()] == ["a.json"]


@pytest.mark.parametrize("stopped_at", ["safetensors", "json"])
def test_a_bag_whose_upload_was_cut_is_no_bag(
    memory: Any, elsewhere: Any, monkeypatch: pytest.MonkeyPatch, stopped_at: str
) -> None:
    """Whether before the bag or before its record: elsewhere the slide is one without a bag, and can be made again."""
    BagStore(URL).save(random_bag("first"))
    whole = type(memory).pipe_file

    def cut(self: Any, key: str, *rest: Any, **more: Any) -> None:
        if key.endswith(f"second.{stopped_at}"):
            raise KeyboardInterrupt
        whole(self, key, *rest, **more)

    with monkeypatch.context() as broken:
        broken.setattr(type(memory), "pipe_file", cut)
        with pytest.raises(KeyboardInterrupt):
            BagStore(URL).save(random_bag("second"))
    elsewhere()
    store = BagStore(URL)
    assert store.slide_ids() == ["first"]
    assert "second" not in store
    with pytest.raises(MarbleError, match="no bag of slide 'second'"):
        store.load("second")
    store.save(random_bag("second"))
    assert store.load("second").slide_id == "second"


def test_half_an_object_is_refused(memory: Any, elsewhere: Any) -> None:
    """A storage that shows a part of an object breaks its own promise; the hash in the record still finds it."""
    BagStore(URL).save(random_bag("a"))
    data = memory.cat_file("/bucket/bags/a.safetensors")
    memory.pipe_file("/bucket/bags/a.safetensors", data[: len(data) // 2])
    elsewhere()
    with pytest.raises(IntegrityError, match="bytes changed since they were written"):
        BagStore(URL).load("a")


def test_fsspec_is_loaded_only_for_a_url() -> None:
    code = "import marble.storage, marble.files, sys; sys.exit('fsspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_lock_of_this_machine_is_left_alone(memory: Any) -> None:
    lock = storage.location(f"{URL}/.a.lock")
    lock.parent.mkdir(parents=True)
    lock.write_text("{}")
    assert files.read_json(lock) == {}
    assert lock.exists()
    assert memory.find("/bucket") == []
