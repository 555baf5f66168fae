"""What is in a store, slide by slide: a file that cannot be trusted is named, and hides no other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from marble import storage
from marble.bags.record import file_stem, read_record
from marble.bags.store import BagStore
from marble.errors import BagError, IntegrityError, MarbleError


def survey(store: BagStore) -> Iterator[tuple[str, MarbleError | None]]:
    """Every slide that has a bag, with None; and whatever else is there in the place of one, with what is wrong."""
    known = set()
    storage.pull(store.root)
    for path in sorted(store.root.glob("*.json")):
        if path.name == "store.json":
            continue
        known.add(path.stem)
        try:
            record = read_record(path)
            if file_stem(record.slide_id) != path.stem:
                raise IntegrityError(f"record belongs to slide '{record.slide_id}'", where=path)
        except MarbleError as error:
            yield path.stem, error
        else:
            if record.status == "ok":
                yield record.slide_id, None
    for path in sorted(store.root.glob("*.safetensors")):
        if path.stem not in known:
            what = "no record says that this bag is whole"
            yield path.stem, IntegrityError(what, where=path, hint="Extract the slide again")


def damage(store: BagStore, slides: Iterable[str]) -> dict[str, MarbleError]:
    """What is wrong with the bags that these slides should have by their records.

    Every bag is read and compared with its record, once in a process. In a storage elsewhere only the records are
    looked at: its bags are fetched by whoever needs them.
    """
    found = ((slide, _fault(store, slide)) for slide in slides)
    return {slide: error for slide, error in found if error is not None}


def _fault(store: BagStore, slide_id: str) -> MarbleError | None:
    try:
        if slide_id in store and storage.address(store.root) is None:
            store.load(slide_id)
    except MarbleError as error:
        return error
    except OSError as error:
        return BagError(f"cannot be read: {error.strerror}", where=store.bag_path(slide_id))
    return None
