"""A folder of bags: one safetensors file per slide, and beside it a JSON record that is written last.

    <store>/store.json                  what all bags here have in common (encoder, levels, source)
    <store>/<slide>.safetensors         level{k}.features, level{k}.cells, level{k}.parent
    <store>/<slide>.json                status, hashes, counts, provenance

A slide is done when its record says so *and* the hash in it matches; that a file exists means nothing. A bag is valid
or it does not load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch.utils.data import Dataset

from marble import files, storage
from marble.bags.bag import Bag
from marble.bags.bag_file import bag_bytes, counts_of, read_bag
from marble.bags.provenance import Provenance
from marble.bags.record import RECORD_FORMAT, BagRecord, file_stem, read_record, read_sealed
from marble.compute import locks
from marble.errors import BagError, InputError, IntegrityError, MarbleError

#: in the name of a store whose slides were read in part: the branches that somebody's router chose
ROUTED = "-routed-"
# What was hashed and checked in this process already: path -> (size, mtime_ns, inode, sha256).
_verified: dict[Path, tuple[int, int, int, str]] = {}
# Records parsed in this process, with the stamp of the file they were read from.
_parsed: dict[Path, tuple[tuple[int, int, int], BagRecord]] = {}


def forget(path: Path) -> None:
    """Check this file again at its next load, whatever was found before."""
    _verified.pop(path.resolve(), None)


class BagStore:
    """Bags by slide id. Opening is cheap; nothing is read before it is asked for."""

    def __init__(self, root: str | Path) -> None:
        self.root = storage.location(root)

    @staticmethod
    def any_at(root: str | Path) -> bool:
        """Whether `root` is a store, or there are some right below it."""
        folder = storage.location(root)
        storage.pull(folder)
        return _is_store(folder) or any(folder.glob("*/store.json"))

    @classmethod
    def find(cls, root: str | Path, like: Provenance | None = None) -> BagStore:
        """The store at `root`, or the only one below it, as `marble extract --store` leaves it.

        Args:
            root: a store, or a folder of stores.
            like: of several, the one whose bags were made in this way. One of routed slides is taken for another only
                where it is given itself.
        """
        folder = storage.location(root)
        storage.pull(folder)
        candidates = [folder] if _is_store(folder) else sorted(path.parent for path in folder.glob("*/store.json"))
        fitting = candidates
        if like is not None and len(candidates) > 1:
            fitting = [path for path in candidates if cls(path).common().recipe() == like.recipe()]
        fitting = of_whole_slides(fitting)
        if len(fitting) == 1:
            return cls(fitting[0])
        if not candidates:
            what = "no bags here" if folder.is_dir() else "no such folder"
            raise InputError(what, where=root, hint="Make bags with `marble extract` or `marble import`")
        names = ", ".join(path.name for path in fitting or candidates)
        if fitting:
            hint = f"Give one of them, for example {fitting[0]}"
            raise InputError(f"several stores are here: {names}", where=root, hint=hint)
        hint = "Give the slides themselves, or extract them with the settings of the training bags"
        raise InputError(f"none of the stores here holds bags like the training bags: {names}", where=root, hint=hint)

    def save(self, bag: Bag, details: Mapping[str, Any] | None = None, stage: str = "extract") -> BagRecord:
        """Publish the bag, then its record. Refuses a bag made in another way than those already here."""
        if not isinstance(bag, Bag):
            raise InputError(
                f"bags are saved, got {type(bag).__name__}", hint="Make a `Bag`, or `Bag.of_tokens`, of it"
            )
        self._join(bag)
        data = bag_bytes(bag)
        record = BagRecord(
            slide_id=bag.slide_id,
            status="ok",
            stage=stage,
            bag_sha256=files.sha256_bytes(data),
            bag_bytes=len(data),
            levels=counts_of(bag),
            provenance=bag.provenance,
            details=dict(details or {}),
        )
        files.publish(self.bag_path(bag.slide_id), data)
        self._publish_record(record)
        return record

    def note(
        self, slide_id: str, status: Literal["failed", "excluded"], stage: str, reason: str, **details: Any
    ) -> BagRecord:
        """Leave a record for a slide that has no bag, with the reason."""
        record = BagRecord(slide_id=slide_id, status=status, stage=stage, reason=reason, details=details)
        self._publish_record(record)
        return record

    def load(self, slide_id: str) -> Bag:
        """Map the bag into memory, after its hash and every rule were checked (once per file and process)."""
        record = self.record(slide_id)
        path = self.bag_path(slide_id)
        if record.status != "ok":
            raise BagError(f"slide has no bag: {record.status} at {record.stage}: {record.reason}", where=path)
        storage.fetch(path)
        stat = path.stat() if path.exists() else None
        if stat is None:
            raise IntegrityError("the record is there but the bag is not", where=path, hint="Extract the slide again")
        key = path.resolve()
        known = _verified.get(key) == (stat.st_size, stat.st_mtime_ns, stat.st_ino, record.bag_sha256)
        if not known:
            self.check_hash(record)
        bag = read_bag(path, slide_id, record.provenance if known else None)
        if not known:
            self._check_record(bag, record)
            _verified[key] = (stat.st_size, stat.st_mtime_ns, stat.st_ino, record.bag_sha256 or "")
        return bag

    def check_hash(self, record: BagRecord) -> None:
        """Compare the bag's bytes with the hash in its record."""
        path = self.bag_path(record.slide_id)
        found = files.sha256_file(path)
        if found != record.bag_sha256:
            raise IntegrityError(
                f"bytes changed since they were written: sha256 {found[:12]}, recorded {str(record.bag_sha256)[:12]}",
                where=path,
                hint="Extract or copy the slide again",
            )

    def holds(self, slide_id: str) -> bool:
        """Whether a whole bag of the slide is here; it stays, whatever a later attempt meets."""
        try:
            record = self.record(slide_id)
            if record.status != "ok":
                return False
            self.check_hash(record)
        except (MarbleError, OSError):
            return False  # a damaged bag, or record, is made again
        return True

    def has_record(self, slide_id: str) -> bool:
        """Whether the slide was worked on, however that ended."""
        path = self.record_path(slide_id)
        storage.fetch(path)
        return path.exists()

    def record(self, slide_id: str) -> BagRecord:
        """The slide's record, or an error that says how to get one."""
        path = self.record_path(slide_id)
        storage.fetch(path)
        try:
            stat = path.stat()
        except FileNotFoundError:
            raise BagError(
                f"no bag of slide '{slide_id}' in this store",
                where=self.root,
                hint="Make it with `marble extract` or `marble import`",
            ) from None
        stamp = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        known = _parsed.get(path)
        if known is not None and known[0] == stamp:
            return known[1]
        record = read_record(path)
        if record.slide_id != slide_id:
            raise IntegrityError(f"record belongs to slide '{record.slide_id}'", where=path)
        _parsed[path] = (stamp, record)
        return record

    def records(self) -> Iterator[BagRecord]:
        """Every slide's record, sorted by file name."""
        storage.pull(self.root)
        for path in sorted(self.root.glob("*.json")):
            if path.name != "store.json":
                yield read_record(path)

    def slide_ids(self) -> list[str]:
        """Slides that have a bag."""
        return [record.slide_id for record in self.records() if record.status == "ok"]

    def __iter__(self) -> Iterator[Bag]:
        """Every bag, one at a time; none is held."""
        return (self.load(slide_id) for slide_id in self.slide_ids())

    def __len__(self) -> int:
        return len(self.slide_ids())

    def __bool__(self) -> bool:
        return True  # a store is there, also while it is empty

    def dataset(self, slide_ids: Sequence[str] | None = None) -> BagDataset:
        """The bags as a torch dataset: item i is the bag of the i-th slide, loaded when it is asked for."""
        return BagDataset(self, self.slide_ids() if slide_ids is None else list(slide_ids))

    def __contains__(self, slide_id: object) -> bool:
        return isinstance(slide_id, str) and self.has_record(slide_id) and self.record(slide_id).status == "ok"

    def bag_path(self, slide_id: str) -> Path:
        return self.root / f"{file_stem(slide_id)}.safetensors"

    def record_path(self, slide_id: str) -> Path:
        return self.root / f"{file_stem(slide_id)}.json"

    def _publish_record(self, record: BagRecord) -> None:
        fields = record.model_dump(mode="json", exclude_none=True)
        files.publish_json(self.record_path(record.slide_id), files.seal(fields))

    def _join(self, bag: Bag) -> None:
        """Compare the bag's recipe with the store's; the first bag sets it."""
        path = self.root / "store.json"
        storage.fetch(path)
        lock = self.root / f".store{locks.SUFFIX}"
        if not path.exists():
            # Workers come at the same time: only one may set it, or the store would hold bags of two kinds.
            with locks.hold(lock, f"store '{self.root.name}'", wait=True):
                if not path.exists():
                    common = bag.provenance.without_slide()
                    fields = {"format": RECORD_FORMAT, "provenance": common.model_dump(mode="json")}
                    files.publish_json(path, files.seal(fields))
        elif lock.exists():  # of a process that was killed as soon as it had set it
            locks.sweep(self.root)
        # Read back even then: another machine may have come first with bags of another kind.
        self.common().require_same_recipe(bag.provenance, where=path, against=f"bag '{bag.slide_id}'")

    def common(self) -> Provenance:
        """What all bags of this store share."""
        path = self.root / "store.json"
        return Provenance.parse(read_sealed(path).get("provenance", {}), where=path)

    def _check_record(self, bag: Bag, record: BagRecord) -> None:
        path = self.bag_path(record.slide_id)
        if record.levels != counts_of(bag):
            raise IntegrityError("level sizes differ from the record's", where=path, hint="Extract the slide again")
        if record.provenance != bag.provenance:
            raise IntegrityError("provenance differs from the record's", where=path, hint="Extract the slide again")
        storage.fetch(self.root / "store.json")
        if (self.root / "store.json").exists():
            bag.provenance.require_same_recipe(self.common(), where=path, against=self.root / "store.json")


class BagDataset(Dataset[Bag]):
    """A view of a store for torch's loaders; give the loader `batch_size=None`, since bags differ in size."""

    def __init__(self, store: BagStore, slide_ids: list[str]) -> None:
        self.store, self.slide_ids = store, slide_ids

    def __len__(self) -> int:
        return len(self.slide_ids)

    def __getitem__(self, index: int) -> Bag:
        return self.store.load(self.slide_ids[index])


def _is_store(folder: Path) -> bool:
    """A store without a bag yet, whose slides all failed, has no `store.json` but may have records."""
    return (folder / "store.json").is_file()


def of_whole_slides(stores: list[Path]) -> list[Path]:
    """Of several stores those whose slides were read as a whole, if there are some."""
    return [path for path in stores if ROUTED not in path.name] or stores
