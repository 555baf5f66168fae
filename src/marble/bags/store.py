"""A folder of bags: one safetensors file per slide, and beside it a JSON record that is written last.

    <store>/store.json                  what all bags here have in common (encoder, levels, source)
    <store>/<slide>.safetensors         level{k}.features, level{k}.cells, level{k}.parent
    <store>/<slide>.json                status, hashes, counts, provenance

A slide is done when its record says so *and* the hash in it matches; that a file exists means nothing. A bag is valid
or it does not load.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.utils.data import Dataset

from marble import files
from marble.bags.bag import Bag, Level
from marble.bags.provenance import Provenance, Sha256
from marble.bags.tensors import map_file, to_bytes
from marble.errors import BagError, InputError, IntegrityError
from marble.specs import Spec
from marble.version import VERSION

FORMAT = 1
#: of records and `store.json`: since 2 they carry the checksum of all they say
RECORD_FORMAT = 2
_PLAIN = re.compile(r"[^A-Za-z0-9._ +=@,-]")
# What was hashed and checked in this process already: path -> (size, mtime_ns, inode, sha256).
_verified: dict[Path, tuple[int, int, int, str]] = {}
# Records parsed in this process, with the stamp of the file they were read from.
_parsed: dict[Path, tuple[tuple[int, int, int], BagRecord]] = {}


def forget(path: Path) -> None:
    """Check this file again at its next load, whatever was found before."""
    _verified.pop(path.resolve(), None)


class LevelCount(Spec):
    """How many tokens of which kind one level holds."""

    tokens: int = Field(gt=0)
    dim: int = Field(gt=0)
    dtype: Literal["float16", "float32"]
    ratio: int | None = None


class BagRecord(Spec):
    """The last thing written for a slide; only it makes the slide done."""

    format: int = RECORD_FORMAT
    slide_id: str
    status: Literal["ok", "failed", "excluded"]
    stage: str = "extract"
    reason: str | None = None
    bag_sha256: Sha256 | None = None
    bag_bytes: int | None = None
    levels: tuple[LevelCount, ...] = ()
    provenance: Provenance | None = None
    details: dict[str, Any] = Field(default_factory=dict)
    version: str = VERSION


class BagStore:
    """Bags by slide id. Opening is cheap; nothing is read before it is asked for."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    @staticmethod
    def any_at(root: str | Path) -> bool:
        """Whether `root` is a store, or there are some right below it."""
        return _is_store(Path(root)) or any(Path(root).glob("*/store.json"))

    @classmethod
    def find(cls, root: str | Path, like: Provenance | None = None) -> BagStore:
        """The store at `root`, or the only one below it, as `marble extract --store` leaves it.

        Args:
            root: a store, or a folder of stores.
            like: of several, the one whose bags were made in this way.
        """
        folder = Path(root)
        candidates = [folder] if _is_store(folder) else sorted(path.parent for path in folder.glob("*/store.json"))
        fitting = candidates
        if like is not None and len(candidates) > 1:
            fitting = [path for path in candidates if cls(path).common().recipe() == like.recipe()]
        if len(fitting) == 1:
            return cls(fitting[0])
        if not candidates:
            what = "no bags here" if folder.is_dir() else "no such folder"
            raise InputError(what, where=root, hint="Make bags with `marble extract` or `marble import`")
        names = ", ".join(path.name for path in fitting or candidates)
        what = f"several stores are here: {names}" if fitting else f"none of the stores here fits: {names}"
        raise InputError(what, where=root, hint=f"Give one of them, for example {(fitting or candidates)[0]}")

    def save(self, bag: Bag, details: Mapping[str, Any] | None = None, stage: str = "extract") -> BagRecord:
        """Publish the bag, then its record. Refuses a bag made in another way than those already here."""
        self._join(bag)
        data = to_bytes(_named_tensors(bag), {"format": FORMAT, **_identity(bag)})
        record = BagRecord(
            slide_id=bag.slide_id,
            status="ok",
            stage=stage,
            bag_sha256=files.sha256_bytes(data),
            bag_bytes=len(data),
            levels=_counts(bag),
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
        stat = path.stat() if path.exists() else None
        if stat is None:
            raise IntegrityError("the record is there but the bag is not", where=path, hint="Extract the slide again")
        key = path.resolve()
        known = _verified.get(key) == (stat.st_size, stat.st_mtime_ns, stat.st_ino, record.bag_sha256)
        if not known:
            self.check_hash(record)
        bag = _from_file(path, record, checked=known)
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

    def record(self, slide_id: str) -> BagRecord:
        """The slide's record, or an error that says how to get one."""
        path = self.record_path(slide_id)
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
        return (
            isinstance(slide_id, str) and self.record_path(slide_id).exists() and self.record(slide_id).status == "ok"
        )

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
        if not path.exists():
            common = bag.provenance.without_slide()
            fields = {"format": RECORD_FORMAT, "provenance": common.model_dump(mode="json")}
            files.publish_json(path, files.seal(fields))
        # Read back even then: another worker may have come first with bags of another kind.
        self.common().require_same_recipe(bag.provenance, where=path, against=f"bag '{bag.slide_id}'")

    def common(self) -> Provenance:
        """What all bags of this store share."""
        path = self.root / "store.json"
        return Provenance.parse(_sealed(path).get("provenance", {}), where=path)

    def _check_record(self, bag: Bag, record: BagRecord) -> None:
        path = self.bag_path(record.slide_id)
        if record.levels != _counts(bag):
            raise IntegrityError("level sizes differ from the record's", where=path, hint="Extract the slide again")
        if record.provenance != bag.provenance:
            raise IntegrityError("provenance differs from the record's", where=path, hint="Extract the slide again")
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


def read_record(path: Path) -> BagRecord:
    """A record, after its checksum was compared with all it says."""
    return BagRecord.parse(_sealed(path), where=path)


def has_checksum(path: Path) -> bool:
    """Whether a record or `store.json` carries a checksum; those of the first format do not."""
    return files.SEAL in files.read_json(path, dict)


def _sealed(path: Path) -> dict[str, Any]:
    """The fields of a record or of `store.json`. Those of the first format carry no checksum, and are taken as read."""
    fields: dict[str, Any] = files.read_json(path, dict)
    known = fields.get("format")
    if known not in (FORMAT, RECORD_FORMAT):
        raise IntegrityError(f"format {str(known)[:20]!r} is not one of {FORMAT}, {RECORD_FORMAT}", where=path)
    if (known == RECORD_FORMAT or files.SEAL in fields) and not files.is_sealed(fields):
        raise IntegrityError(
            "changed since it was written: its checksum does not fit", where=path, hint="Extract the slide again"
        )
    return {key: value for key, value in fields.items() if key != files.SEAL}


def file_stem(slide_id: str) -> str:
    """A file name for any slide id: no separators, no hidden files, no clash between different ids."""
    safe = _PLAIN.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), slide_id)
    if safe[:1] in (".", "-"):
        safe = f"%{ord(safe[0]):02X}{safe[1:]}"
    if len(safe) > 180 or safe.lower() == "store":
        safe = f"{safe[:120]}%{hashlib.sha256(slide_id.encode()).hexdigest()[:32]}"
    return safe


def _named_tensors(bag: Bag) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for k, level in enumerate(bag.levels):
        if level.features.dtype == torch.float64:
            raise BagError("a store holds float16 or float32 features", where=f"{bag.slide_id}, level {k}",
                           hint="Convert with `bag.to(dtype=torch.float32)`")  # fmt: skip
        tensors[f"level{k}.features"] = level.features
        tensors[f"level{k}.cells"] = level.cells
        if level.parent is not None:
            tensors[f"level{k}.parent"] = level.parent
    return tensors


def _identity(bag: Bag) -> dict[str, Any]:
    return {
        "slide_id": bag.slide_id,
        "ratios": [level.ratio for level in bag.levels],
        "provenance": bag.provenance.model_dump(mode="json"),
    }


def _counts(bag: Bag) -> tuple[LevelCount, ...]:
    return tuple(
        LevelCount.model_validate(
            {
                "tokens": len(level),
                "dim": level.dim,
                "dtype": str(level.features.dtype).removeprefix("torch."),
                "ratio": level.ratio,
            }
        )
        for level in bag.levels
    )


def _from_file(path: Path, record: BagRecord, *, checked: bool) -> Bag:
    tensors, metadata = map_file(path)
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise IntegrityError(f"not a MARBLE bag of format {FORMAT}", where=path)
    if metadata.get("slide_id") != record.slide_id:
        raise IntegrityError(f"holds slide '{metadata.get('slide_id')}', not '{record.slide_id}'", where=path)
    if checked and record.provenance is not None:  # compared with the file's own when it was checked
        provenance = record.provenance
    else:
        provenance = Provenance.parse(metadata.get("provenance", {}), where=path)
    ratios = metadata.get("ratios") or []
    if not isinstance(ratios, list):
        raise IntegrityError("'ratios' in its metadata is not a list", where=path)
    wanted = {f"level{k}.{name}" for k in range(len(ratios)) for name in ("features", "cells", "parent")}
    wanted.discard("level0.parent")
    if set(tensors) != wanted:
        raise BagError(f"tensors {sorted(set(tensors) ^ wanted)} are missing or unexpected", where=path)
    levels = []
    for k, ratio in enumerate(ratios):
        features, cells = tensors[f"level{k}.features"], tensors[f"level{k}.cells"]
        parent = tensors.get(f"level{k}.parent")
        _check_dtypes(path, k, features, cells, parent)
        levels.append(Level(features, cells, parent, ratio))
    try:
        return Bag(record.slide_id, levels, provenance, checked=checked)
    except BagError as error:
        raise BagError(f"{error.where}: {error.what}", where=path, hint=error.hint) from None


def _check_dtypes(path: Path, k: int, features: Tensor, cells: Tensor, parent: Tensor | None) -> None:
    if features.dtype not in (torch.float16, torch.float32):
        raise BagError(f"level{k}.features must be float16 or float32, not {features.dtype}", where=path)
    if cells.dtype != torch.int32:
        raise BagError(f"level{k}.cells must be int32, not {cells.dtype}", where=path)
    if parent is not None and parent.dtype != torch.int64:
        raise BagError(f"level{k}.parent must be int64, not {parent.dtype}", where=path)
