"""Hash everything again and name each fault."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from marble import files
from marble.bags.record import file_stem, has_checksum, read_record
from marble.bags.store import BagStore, forget
from marble.errors import InputError, IntegrityError, MarbleError
from marble.training import routing
from marble.training.results import find_runs, read_predictions, read_run
from marble.walking import named


@dataclass
class Verdict:
    """How many artefacts were looked at, what is wrong with which, and what is worth knowing."""

    checked: int = 0
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify_path(target: str | Path) -> Verdict:
    """Check a store, a folder of stores, a run or a folder of runs; whatever is found there."""
    root = Path(target)
    stores = sorted({path.parent for name in ("store.json", "extract.toml") for path in named(root, name)})
    runs = find_runs(root)
    if not stores and not runs:
        raise InputError("neither a store of bags nor a run", where=root, hint="Give the folder that holds them")
    verdict = Verdict()
    for store in stores:
        _verify_store(BagStore(store), verdict)
    for run in runs:
        _verify_run(run, verdict)
    return verdict


def _verify_store(store: BagStore, verdict: Verdict) -> None:
    known, unsealed = set(), 0
    for path in sorted(store.root.glob("*.json")):
        verdict.checked += 1
        try:
            if path.name == "store.json":
                store.common()
                unsealed += not has_checksum(path)
                continue
            record = read_record(path)
            unsealed += not has_checksum(path)  # counted once it is known to be a record
            known.add(path.stem)
            if file_stem(record.slide_id) != path.stem:
                raise IntegrityError(f"record belongs to slide '{record.slide_id}'", where=path)
            if record.status == "ok":
                forget(store.bag_path(record.slide_id))  # trust nothing that was checked before
                store.load(record.slide_id)
        except Exception as error:  # whatever is wrong with a file, it is named and the rest is looked at
            known.add(path.stem)
            verdict.faults.append(_fault(path, error))
    if unsealed:
        verdict.notes.append(
            f"{store.root}: {unsealed} records of an earlier version carry no checksum of their own; "
            "extract into a new store to have them"
        )
    for path in sorted(store.root.glob("*.safetensors")):
        if path.stem not in known:
            verdict.checked += 1
            verdict.faults.append(f"{path}: no record says that this bag is whole. Extract the slide again")
    for path in sorted(store.root.glob(f".*{files.PART}")):
        verdict.faults.append(f"{path}: left by a process that died. Start the same command again; it removes it")


def _verify_run(folder: Path, verdict: Verdict) -> None:
    verdict.checked += 1
    try:
        record = read_run(folder)
        read_predictions(folder)
        fitted = files.read_json(folder / "fit.json")
        if not isinstance(fitted, dict) or fitted.get("model_sha256") != record["sha256"]["model"]:
            verdict.faults.append(f"{folder / 'fit.json'}: belongs to another fit than run.json. Run it again")
        for name, file in (("model", "model.safetensors"), ("history", "history.csv")):
            path = folder / file
            if not path.exists() or files.sha256_file(path) != record["sha256"][name]:
                verdict.faults.append(f"{path}: missing or changed since it was written. Run the experiment again")
        if (folder / routing.RECORD).exists():
            routing.read_routing(folder)
    except Exception as error:  # as above
        verdict.faults.append(_fault(folder, error))


def _fault(path: Path, error: Exception) -> str:
    """One line that names the file."""
    if isinstance(error, MarbleError):
        said = str(error)
        return said if str(path.parent) in said else f"{path}: {said}"
    return f"{path}: damaged ({type(error).__name__}: {str(error)[:200]})"
