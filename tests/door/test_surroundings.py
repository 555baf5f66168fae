"""A fit and an answer are the same whatever the notebook around them has set, and leave that as it was."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch

import marble
from marble.errors import InputError
from tests.door.making import two_classes

BAGS, LABELS = two_classes(16)
QUICK: dict[str, Any] = {"recipe": "common", "epochs": 2, "warmup": 0}
BACKENDS: Any = torch.backends


@contextmanager
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def narrow_products() -> Iterator[None]:
    torch.set_float32_matmul_precision("medium")
    try:
        yield
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


@contextmanager
def precision_by_backend() -> Iterator[None]:
    """After this torch refuses to say its precision in the older way."""
    known = [(one, one.fp32_precision) for one in (BACKENDS.cuda.matmul, BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn)]
    BACKENDS.cuda.matmul.fp32_precision = "tf32"
    BACKENDS.cudnn.conv.fp32_precision = "ieee"
    try:
        yield
        assert [one.fp32_precision for one, _ in known[:2]] == ["tf32", "ieee"]
    finally:
        torch.set_float32_matmul_precision("highest")
        BACKENDS.cudnn.allow_tf32 = True
        for one, before in known:
            one.fp32_precision = before


@pytest.mark.parametrize(
    "around",
    [
        torch.no_grad(),
        torch.inference_mode(),
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.device("meta"),
        float64_by_default(),
        narrow_products(),
        precision_by_backend(),
    ],
    ids=["no_grad", "inference", "autocast", "device", "float64", "medium", "by_backend"],
)
def test_what_the_notebook_has_set_changes_no_number(around: AbstractContextManager[None]) -> None:
    def ask(run: marble.Run) -> list[bytes]:
        maps = [run.explain(BAGS[3], mode).maps[-1].values for mode in ("attention", "gradient", "occlusion")]
        return [run.predict(BAGS[3]).prediction.logits.numpy().tobytes(), *(values.tobytes() for values in maps)]

    run = marble.fit(BAGS, LABELS, "marble", d_state=4, headdim=4, **QUICK)
    expected = ask(run)
    with around:
        again = marble.fit(BAGS, LABELS, "marble", d_state=4, headdim=4, **QUICK)
        assert ask(again) == expected
        assert ask(marble.Run(run.folder)) == expected


def test_fits_in_threads_are_the_fits_one_after_the_other() -> None:
    def loss(seed: int) -> float:
        fitted = marble.fit(BAGS, LABELS, "abmil", seed=seed, **QUICK).validation["loss"]
        assert isinstance(fitted, float)
        return fitted

    expected = [loss(seed) for seed in range(6)]
    torch.manual_seed(7)
    before = torch.get_rng_state(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(loss, range(6))) == expected
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before[1:]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing forks by default")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_fits_after_its_parent_has() -> None:
    """Sums of several threads in the parent would leave a child waiting for threads that it does not have."""
    program = multiprocessing.get_context("spawn").Process(target=_fit_and_fork)
    program.start()
    program.join(120)
    ended = program.exitcode
    program.kill()
    assert ended == 0


def _fit_and_fork() -> None:
    torch.set_num_threads(4)
    marble.fit(BAGS, LABELS, "abmil", **QUICK)
    child = multiprocessing.get_context("fork").Process(target=marble.fit, args=(BAGS, LABELS, "abmil"), kwargs=QUICK)
    child.start()
    child.join(60)
    ended = child.exitcode
    child.kill()
    sys.exit(0 if ended == 0 else 1)


def test_a_run_is_explained_as_what_it_is_at_hand() -> None:
    run = marble.fit(BAGS, LABELS, "mean", **QUICK)
    expected = run.explain(BAGS[0]).maps[-1].values
    for given in (run, run.predictor, run.folder, str(run.folder)):
        assert (marble.explain(given, BAGS[0]).maps[-1].values == expected).all()
    tokens = BAGS[0].finest.features
    assert len(marble.explain(run, tokens).maps[-1].values) == len(tokens)
    model: Any = run.predictor.model
    with pytest.raises(InputError, match="a run, its folder or a Predictor is explained, got MeanMIL"):
        marble.explain(model, BAGS[0])


def test_classes_as_columns_are_no_follow_up() -> None:
    columns = torch.eye(2)[[0, 1] * 8]
    with pytest.raises(InputError, match=r"two classes as columns of 0 and 1 \(one-hot\)\. Give each bag its class"):
        marble.fit(BAGS, columns, "probe")
    run = marble.fit(BAGS, columns, "probe", task="survival")
    assert run.record["task"]["name"] == "survival"
