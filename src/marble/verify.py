"""Hash everything again and name each fault."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from marble import files
from marble.bags import store as bag_store
from marble.bags.store import BagRecord, BagStore, file_stem
from marble.errors import InputError, MarbleError
from marble.training import routing
from marble.training.results import find_runs, read_predictions, read_run


@dataclass
class Verdict:
    """How many artefacts were looked at, and what is wrong with which."""

    checked: int = 0
    faults: list[str] = field(default_factory=list)


def verify_path(target: str | Path) -> Verdict:
    """Check a store, a folder of stores, a run or a folder of runs; whatever is found there."""
    root = Path(target)
    stores = sorted({path.parent for path in root.rglob("store.json")})
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
    known = set()
    for path in sorted(store.root.glob("*.json")):
        if path.name == "store.json":
            continue
        verdict.checked += 1
        try:
            record = BagRecord.parse(files.read_json(path), where=path)
            known.add(file_stem(record.slide_id))
            if record.status == "ok":
                bag_store.forget(store.bag_path(record.slide_id))  # trust nothing that was checked before
                store.load(record.slide_id)
        except (MarbleError, OSError) as error:
            known.add(path.stem)
            verdict.faults.append(str(error))
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
    except (MarbleError, OSError, KeyError, TypeError) as error:
        verdict.faults.append(str(error) if isinstance(error, MarbleError) else f"{folder}: damaged record ({error})")
