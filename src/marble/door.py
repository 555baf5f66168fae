"""The door for Python: `fit` trains a model on bags, and the `Run` it returns answers, explains and draws.

run = marble.fit(bags, targets, model="marble")
run.predict(bag).label
pandas.DataFrame(run.attention(bag))
run.plot(bag).savefig("why.png")
"""

from __future__ import annotations

import os
import shutil
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from marble.attribution.maps import Explanation, explain
from marble.bags.bag import Bag
from marble.devices import choose
from marble.errors import InputError
from marble.experiment.direct import Bags, as_bag, collect, plan_fit, thread_count
from marble.heatmaps.overlay import Words, blank, draw_heatmap
from marble.prediction import Answer, Predictor
from marble.preparing import SlideOptions, bags_of
from marble.surroundings import plain_torch
from marble.threads import torch_threads
from marble.training.run import execute

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def fit(
    bags: Bags,
    targets: Any,
    model: str = "marble",
    *,
    task: str | None = None,
    groups: Any = None,
    folder: str | Path | None = None,
    validation: float = 0.2,
    test: Iterable[Any] = (),
    seed: int = 0,
    threads: int = 1,
    allow_leaks: bool = False,
    device: str | torch.device = "cpu",
    **options: Any,
) -> Run:
    """Train a model.

    Args:
        bags: a store or its folder; bags, by order or by name; or arrays (N, D) for models that read one level.
        targets: in the order of the bags, or by slide id. A class (text, whole number), `(time, event)`, or, with
            `task="regression"`, a number.
        model: a name of `list_models()`.
        task: "classification", "survival" or "regression"; seen from the targets where it can be.
        groups: the patient of every bag, in order or by slide id; every bag is a patient of its own without it.
            Validation never shares a patient with training.
        folder: where the run is kept, and where a fit that was interrupted goes on. Give one to keep the run: without
            it, a temporary folder is removed when the run is no longer used, Python ends, or the fit fails.
        validation: share of the patients that training does not see: they choose the epoch and calibrate.
        test: patients to hold out altogether; their predictions are in the run.
        seed: everything random follows from it.
        threads: of torch; sums depend on their number.
        allow_leaks: train although bags of two patients, one of them held out, are of one file or show the same tissue;
            the run says so.
        device: where it is trained, and the run then computes: auto, cpu, cuda, cuda:N or mps.
        options: the model's own (`drop_rate=0.1`) and those of the training (`epochs=20`, `recipe="small"`).
    """
    scratch: _Scratch | None = None
    try:
        with _one_at_a_time(), _torch_as_it_was(thread_count(threads)):
            there = str(choose(device))
            if folder is None:
                scratch = _Scratch()
                folder = scratch.folder
            root = Path(folder)
            given = collect(bags, targets, root, task, groups)
            planned = plan_fit(
                given, root, model=model, validation=validation, test=test, seed=seed, threads=threads,
                allow_leaks=allow_leaks, options=options,
            )  # fmt: skip
            execute(planned.model_copy(update={"device": there}))
            run = Run(planned.folder, there)
    except BaseException:
        if scratch is not None:
            scratch.remove()
        raise
    run._scratch = scratch
    return run


class _Scratch:
    """A folder for the moment: gone when nobody holds this any more, and at the latest when Python ends."""

    def __init__(self) -> None:
        self.folder = Path(mkdtemp(prefix="marble-fit-"))
        self.remove = weakref.finalize(self, _remove, self.folder, os.getpid())

    def __deepcopy__(self, memo: dict[int, Any]) -> _Scratch:
        return self  # a copy of a run holds the same folder

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # a run that was sent elsewhere holds nothing here


def _remove(folder: Path, owner: int) -> None:
    """Remove the folder; a forked child, which ends before its parent, leaves it alone."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Fits in threads of one program wait for each other: torch's random numbers and its settings are there once."""
    with _FITTING[0]:
        yield


_FITTING = [threading.RLock()]


def _forget_other_threads() -> None:
    """A forked child has none of its parent's threads, and so none that could end the fit it waits for."""
    _FITTING[0] = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)


@contextmanager
def _torch_as_it_was(threads: int | None = None) -> Iterator[None]:
    """Inside, torch is plain and sums with so many threads; whatever is set there is set back, random numbers too."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    with plain_torch(), torch_threads(threads or torch.get_num_threads()), torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(deterministic, warn_only=warns_only)


class Run:
    """A trained model with everything needed to use it again: a folder of `marble run`, or what `fit` made.

    Args:
        folder: of the run.
        device: where it computes: auto, cpu, cuda, cuda:N or mps.
    """

    def __init__(self, folder: str | Path, device: str | torch.device = "cpu") -> None:
        with _torch_as_it_was():  # a model is built with random weights before its own are loaded
            self.predictor = Predictor(folder, device=str(device))
        self.folder = Path(folder)
        self._scratch: _Scratch | None = None  # held by what `fit` made without a folder, and by copies of it

    @property
    def record(self) -> dict[str, Any]:
        """What `run.json` says."""
        return self.predictor.run.record

    @property
    def validation(self) -> dict[str, Any]:
        """The metrics of the chosen epoch on the validation patients."""
        return dict(self.record["fit"]["val"])

    @plain_torch()
    def predict(self, source: Any, options: SlideOptions | None = None) -> Any:
        """An `Answer` for a bag, an array (N, D) or a slide file; a list of answers for several, or for a store."""
        answers = [self.predictor.answer(bag) for bag in self._bags(source, options)]
        single = (
            isinstance(source, Bag)
            or _is_array(source)
            or (isinstance(source, str | Path) and not Path(source).is_dir())
        )
        return answers[0] if single else answers

    def attention(self, source: Any) -> dict[str, NDArray[Any]]:
        """Where the model looked: columns of equal length, a row per tile of every level, ready for `pandas.DataFrame`.

        `attention` sums to 1 over the tiles that the model reads; a coarser tile has the highest below it. `x`, `y`,
        `size` are level-0 pixels, where the bag knows its place.
        """
        return _columns(self.explain(source))

    @plain_torch()
    def explain(self, source: Any, mode: str = "attention", target: str | None = None, level: int = 0) -> Explanation:
        """Maps of attention, gradient or occlusion; see `marble.explain`."""
        bag = self._one_bag(source)
        return explain(self.predictor, bag, mode, target, level=level)

    @plain_torch()
    def plot(self, source: Any, mode: str = "attention", target: str | None = None, max_px: int = 1200) -> Figure:
        """The maps of one bag as a figure, a panel per level."""
        from matplotlib.figure import Figure

        if not isinstance(max_px, int) or not 64 <= max_px <= 8192:
            raise InputError(f"max_px is a whole number from 64 to 8192, got {max_px!r}")
        bag = self._one_bag(source)
        explained = explain(self.predictor, bag, mode, target)
        size = bag.l0_size_px
        pictures = [
            draw_heatmap(blank(size, max_px), size, tiles, Words(f"{bag.slide_id}, level {tiles.level}"))
            for tiles in explained.maps
        ]
        figure = Figure(figsize=(6 * len(pictures), 6), layout="constrained")
        for axis, picture in zip(figure.subplots(1, len(pictures), squeeze=False)[0], pictures, strict=True):
            axis.imshow(picture.pixels)
            axis.axis("off")
        figure.suptitle(explained.answer.sentence)
        return figure

    def _one_bag(self, source: Any) -> Bag:
        found = self._bags(source, None)
        if len(found) != 1:
            hint = "Ask for each of them by itself"
            raise InputError(f"one slide is explained at a time, got {len(found)}", hint=hint)
        return found[0]

    def _bags(self, source: Any, options: SlideOptions | None) -> list[Bag]:
        if isinstance(source, Bag) or _is_array(source):
            return [as_bag(source, "bag")]
        if isinstance(source, Mapping) or not isinstance(source, Iterable | Path):
            raise InputError(
                f"bags, arrays (N, D), slides or a list of them are predicted, got {type(source).__name__}"
            )
        if not isinstance(source, str | Path):
            return [bag for one in source for bag in self._bags(one, options)]
        found = [bag for _, bag in bags_of([source], self.predictor.run, options)]
        for bag in found:
            if isinstance(bag, Exception):
                raise bag
        if not found:
            raise InputError("nothing to predict", where=source)
        return [bag for bag in found if isinstance(bag, Bag)]


def _is_array(source: Any) -> bool:
    """Whether this is one bag's tokens: of torch, numpy, or a table of pandas."""
    return isinstance(source, torch.Tensor | np.ndarray) or hasattr(source, "columns")


def _columns(explained: Explanation) -> dict[str, NDArray[Any]]:
    maps = explained.maps
    boxes = np.concatenate([tiles.l0_boxes for tiles in maps])
    cells = np.concatenate([tiles.cells for tiles in maps])
    return {
        "level": np.concatenate([np.full(len(tiles.values), tiles.level) for tiles in maps]),
        "row": cells[:, 0],
        "col": cells[:, 1],
        "x": boxes[:, 0],
        "y": boxes[:, 1],
        "size": boxes[:, 2],
        explained.mode: np.concatenate([tiles.values for tiles in maps]),
    }


__all__ = ["Answer", "Run", "fit"]
