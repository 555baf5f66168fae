"""What a file that cannot be a slide is, by how its name ends: said before anybody tries to read pixels from it."""

from __future__ import annotations

from pathlib import Path

from marble.errors import InputError

_SLIDES = "Give slides, a folder of slides, bags or a store"
_FEATURES = "Bring features of other tools in with `marble import`, and give the store"
_KINDS = {
    "a table": (_SLIDES, (".csv", ".tsv", ".xls", ".xlsx", ".ods", ".parquet")),
    "settings": (_SLIDES, (".toml", ".ini", ".yaml", ".yml")),
    "a file of JSON": (_SLIDES, (".json", ".geojson", ".jsonl")),
    "a text": (_SLIDES, (".txt", ".md", ".log", ".html", ".pdf", ".py", ".ipynb", ".sh")),
    "an archive": ("Unpack it first", (".zip", ".gz", ".tgz", ".tar", ".7z", ".rar", ".bz2", ".xz")),
    "a file of arrays": (_FEATURES, (".h5", ".hdf5", ".npy", ".npz", ".pt", ".pth", ".pkl", ".zarr")),
}


def refuse_other_kinds(path: Path) -> None:
    """Raise for a file that is called like something else than a slide; any other may be one."""
    for kind, (hint, endings) in _KINDS.items():
        if path.suffix.lower() in endings:
            raise InputError(f"{kind}, not a slide", where=path, hint=hint)
