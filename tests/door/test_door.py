"""`marble.fit` and what it returns, as a notebook would use them."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import marble
from marble.door import _torch_as_it_was
from marble.errors import InputError, MarbleError
from tests.door.making import planted_bag, two_classes

QUICK: dict[str, Any] = {"recipe": "common", "epochs": 12, "warmup": 0, "lr": 3e-3, "orders": 2}


def test_fit_predict_attention_and_plot(tmp_path: Path) -> None:
    bags, labels = two_classes()
    run = marble.fit(bags, labels, "abmil", folder=tmp_path, test=["s00", "s01"], **QUICK)
    assert set(run.validation) >= {"auc", "accuracy"}
    answer = run.predict(bags[0])
    assert answer.membership.part == "test"
    assert set(answer.readout) == {"p_benign", "p_tumour"}
    assert [one.label for one in run.predict(bags[:4])] == labels[:4]
    table = run.attention(bags[3])
    assert {len(column) for column in table.values()} == {20}
    coarse, fine = (table["attention"][table["level"] == level] for level in (0, 1))
    assert fine.sum() == pytest.approx(1)
    assert coarse.max() == fine.max()
    assert len(run.plot(bags[3]).axes) == 2
    again = marble.Run(run.folder)
    assert torch.equal(again.predict(bags[5]).prediction.logits, run.predict(bags[5]).prediction.logits)


def test_marble_itself_and_a_store(tmp_path: Path) -> None:
    bags, labels = two_classes(16)
    store = marble.BagStore(tmp_path / "store")
    for bag in bags:
        store.save(bag)
    assert (len(store), [bag.slide_id for bag in store]) == (16, [f"s{k:02d}" for k in range(16)])
    assert store.dataset(["s03"])[0].slide_id == "s03"
    named = dict(zip(store.slide_ids(), labels, strict=True))
    run = marble.fit(store, named, folder=tmp_path / "run", d_state=4, headdim=4, **QUICK)
    assert run.record["model"]["name"] == "marble"
    assert len(run.predict(tmp_path / "store")) == 16


def test_arrays_for_models_of_one_level() -> None:
    bags, labels = two_classes()
    arrays = [bag.finest.features.numpy() for bag in bags]
    run = marble.fit(arrays, np.array([label == "tumour" for label in labels], dtype=int), "mean", **QUICK)
    assert run.record["task"]["classes"] == ["0", "1"]
    assert run.predict(arrays[1]).label == "1"
    model = marble.build("mean", 6, 2).eval()
    assert torch.equal(model(torch.as_tensor(arrays[0])).logits, model([bags[0], bags[1]])[0].logits)


def test_arrays_as_numpy_pandas_and_lists_have_them() -> None:
    """They are float64 unless somebody says otherwise, and stores hold float32."""
    bags, labels = two_classes()
    single = [bag.finest.features for bag in bags]
    double = [one.double().numpy() for one in single]
    run = marble.fit(double, labels, "mean", **QUICK)
    like = marble.fit(single, labels, "mean", **QUICK)
    wanted = like.predict(single[1]).prediction.logits
    for same in (double[1], pandas.DataFrame(double[1]), single[1]):
        assert torch.equal(run.predict(same).prediction.logits, wanted)
    lists = marble.fit([one.tolist() for one in double], labels, "mean", **QUICK)
    assert torch.equal(lists.predict(double[1]).prediction.logits, wanted)
    counts = marble.fit([one.round().to(torch.int64) for one in single], labels, "mean", **QUICK)
    assert counts.predict(single[1]).label == labels[1]
    with pytest.raises(InputError, match="bag: complex numbers are no features"):
        run.predict(double[0] * 1j)


@pytest.mark.parametrize("odd", [0, 7])
def test_a_bag_of_another_width_is_named_wherever_it_stands(odd: int) -> None:
    bags, labels = two_classes()
    arrays = [bag.finest.features.numpy()[:, : 5 if number == odd else 6] for number, bag in enumerate(bags)]
    with pytest.raises(MarbleError, match=f"bag-0000{odd}: tokens 5 wide, but tokens 6 wide in 23 other bags"):
        marble.fit(arrays, labels, "mean", **QUICK)


def fit_with(arguments: dict[str, Any]) -> marble.Run:
    return marble.fit(**arguments)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_for_the_moment_goes_with_the_last_run_that_uses_it(scratch: Path) -> None:
    bags, labels = two_classes()
    run = marble.fit(bags, labels, "probe")
    logits = run.predict(bags[0]).prediction.logits
    shared, whole, sent = copy.copy(run), copy.deepcopy(run), pickle.dumps(run)
    assert len(list(scratch.glob("marble-fit-*"))) == 1
    for _ in range(2):
        assert (run.folder / "run.json").exists()
        run, shared = shared, whole
        gc.collect()
    assert (run.folder / "run.json").exists()
    del run, shared, whole
    gc.collect()
    assert list(scratch.glob("marble-fit-*")) == []
    assert torch.equal(pickle.loads(sent).predict(bags[0]).prediction.logits, logits)  # it needs no folder to answer


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"targets": ["one"]}, {"model": "marbel"}])
def test_a_fit_that_fails_leaves_no_folder(scratch: Path, wrong: dict[str, Any]) -> None:
    bags, labels = two_classes()
    with pytest.raises(MarbleError):
        fit_with({"bags": bags, "targets": labels, "model": "abmil"} | wrong)
    assert list(scratch.glob("marble-fit-*")) == []


def test_a_folder_for_the_moment_goes_when_python_ends(scratch: Path) -> None:
    script = """
        import os, marble
        from tests.door.making import two_classes
        run = marble.fit(*two_classes(), "probe")
        child = os.fork()
        if child == 0:
            raise SystemExit  # ends as a Python does, and must not take its parent's folder along
        os.waitpid(child, 0)
        assert run.folder.exists()
        print(run.folder)
    """
    ended = subprocess.run(
        [sys.executable, "-c", dedent(script)],
        env=os.environ | {"TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert Path(ended.stdout.strip()).is_relative_to(scratch)
    assert list(scratch.glob("marble-fit-*")) == []


def test_survival_from_pairs_and_from_structured_arrays() -> None:
    bags = [planted_bag(f"s{k:02d}", k / 4 - 3) for k in range(24)]
    times = [float(30 - k) for k in range(24)]
    events = [k % 3 > 0 for k in range(24)]
    pairs = marble.fit(bags, list(zip(times, events, strict=True)), "probe")
    structured = np.array(list(zip(events, times, strict=True)), dtype=[("event", "?"), ("time", "<f8")])
    arrays = marble.fit(bags, structured, "probe")
    risks = [run.predict(bags[20]).readout["risk"] for run in (pairs, arrays)]
    assert risks[0] == risks[1]
    assert pairs.predict(bags[23]).readout["risk"] > pairs.predict(bags[0]).readout["risk"]


def test_a_series_is_read_by_its_slide_ids_whatever_its_order(tmp_path: Path) -> None:
    bags, labels = two_classes(16)
    store = marble.BagStore(tmp_path / "store")
    for bag in bags:
        store.save(bag)
    table = pandas.DataFrame({"label": labels, "patient": range(16)}, index=[bag.slide_id for bag in bags])
    mixed = table.sort_values(["label", "patient"])  # as a table that is not sorted by slide
    assert list(mixed.index) != store.slide_ids()
    for given in (store, bags):
        root = tmp_path / str(given is bags)
        run = marble.fit(given, mixed["label"], "mean", groups=mixed["patient"], folder=root, test=[3], **QUICK)
        assert run.predict(bags[3]).membership.part == "test"
        assert [one.label for one in run.predict(bags)] == labels
    with pytest.raises(InputError, match="holds 's00' more than once"):
        marble.fit(store, pandas.concat([table, table[:1]])["label"], "mean")
    with pytest.raises(InputError, match=r"slide ids are text, got 0.*dtype=str"):
        marble.fit(store, dict(enumerate(labels)), "mean")
    with pytest.raises(InputError, match=r"'s00\.svs' of targets has no bag"):
        marble.fit(store, {f"{name}.svs": label for name, label in table["label"].items()}, "mean")


def test_classes_that_are_numbers_are_sorted_as_in_a_table() -> None:
    bags, labels = two_classes(16)
    run = marble.fit(bags, [10 if label == "tumour" else 9 for label in labels], "mean", **QUICK)
    assert run.record["task"]["classes"] == ["9", "10"]  # the second is positive, in Python as on the command line


def test_bags_of_one_patient_are_never_in_two_parts(tmp_path: Path) -> None:
    bags, labels = two_classes(24)
    patients = [f"p{k % 12:02d}" for k in range(24)]  # two slides each, of one class
    run = marble.fit(bags, labels, "mean", groups=patients, folder=tmp_path, validation=0.3, **QUICK)
    where = {bag.slide_id: run.predict(bag).membership.part for bag in bags}
    assert all(where[f"s{k:02d}"] == where[f"s{k + 12:02d}"] for k in range(12))
    assert set(where.values()) == {"train", "val"}


def test_no_setting_of_torch_is_left_changed() -> None:
    bags, labels = two_classes(16)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    marble.fit(bags, labels, "mean", threads=1, **QUICK)
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": ["a"]}, "1 targets for 16 bags"),
        ({"targets": {"s00": "a"}}, "targets lacks 's01'"),
        ({"targets": [0.5] * 16}, 'Say task="regression"'),
        ({"targets": [None] * 16}, "s00: the target is missing (None)"),
        ({"targets": ["a"] * 15 + [float("nan")]}, "s15: the target is missing (nan)"),
        ({"targets": ["a"] * 15 + [" "]}, "s15: the target is missing"),
        ({"targets": [1.0] * 15 + [float("nan")], "task": "regression"}, "s15: a regression target is a finite number"),
        ({"targets": [(3.0, 1)] * 15 + [(3.0, float("nan"))]}, "s15: an event is True or False, 1 or 0, got nan"),
        ({"targets": [(3.0, 1)] * 15 + [(-3.0, 1)]}, "s15: a time is a number from 0 on, got -3.0"),
        ({"targets": [(float("nan"), 1)] * 16}, "s00: a time is a number from 0 on, got nan"),
        ({"targets": [(3.0, "0")] * 16}, "s00: an event is True or False, 1 or 0, got '0'"),
        ({"groups": [f"p{k}" for k in range(15)] + [None]}, "s15: the patient is missing"),
        ({"groups": [f"p{k}" for k in range(15)] + ["P3"]}, "s15: patient 'P3' is 'p3' elsewhere"),
        ({"targets": ["a", "b"] * 7 + ["a", "nan"]}, "s15: the target is missing ('nan')"),
        ({"targets": ["a", "b"] * 7 + ["a", "<NA>"]}, "s15: the target is missing ('<NA>')"),
        ({"targets": ["a", "b"] * 7 + ["a", "B "]}, "s15: class 'B' is 'b' elsewhere. Write one class in one way"),
        ({"targets": [0.5] * 16, "task": "survival"}, "Give (time, event)"),
        ({"targets": np.array([(np.timedelta64(3, "D"), 1)] * 16, dtype=object)}, "s00: a time is a number"),
        ({"targets": np.array([3] * 16, "timedelta64[ns]"), "task": "regression"}, "s00: np.timedelta64(3,'ns') is no"),
        ({"groups": [f"p{k}" for k in range(15)] + ["nan"]}, "s15: the patient is missing ('nan')"),
        ({"task": "survival"}, "the targets are for classification"),
        ({"model": "abmli"}, "abmil"),
        ({"epoch": 3}, "epochs"),
        ({"test": ["nobody"]}, "patient 'nobody' of `test` has no bag"),
        ({"bags": []}, "no bags"),
        ({"groups": ["p"] * 16}, "several targets"),
    ],
)
def test_what_cannot_be_fitted_is_said_in_one_line(change: dict[str, Any], message: str) -> None:
    bags, labels = two_classes(16)
    arguments: dict[str, Any] = {"bags": bags, "targets": labels, "model": "mean", **change}
    with pytest.raises(InputError) as refused:
        marble.fit(**arguments)
    assert message in str(refused.value)


def test_targets_groups_and_bags_of_torch_and_pandas(tmp_path: Path) -> None:
    bags, labels = two_classes(16)
    truths = torch.tensor([label == "tumour" for label in labels])
    for targets, classes in (
        (truths, ["False", "True"]),
        (truths.long(), ["0", "1"]),
        (truths.float(), ["0", "1"]),
        (truths.bfloat16(), ["0", "1"]),
        ([label.encode() for label in labels], ["benign", "tumour"]),
        (list(truths.int()), ["0", "1"]),
    ):
        run = marble.fit(bags, targets, "probe", groups=torch.arange(16), test=torch.tensor([3]))
        assert run.record["task"]["classes"] == classes
        assert run.predict(bags[3]).membership.part == "test"
    pairs = torch.tensor([[k + 1.0, k % 2] for k in range(16)])
    assert marble.fit(bags, pairs, "probe").record["task"]["name"] == "survival"
    numbers = marble.fit(bags, torch.arange(16.0), "probe", task="regression")
    tokens = bags[0].finest.features
    table = pandas.DataFrame(tokens.numpy())
    of_tables = marble.fit([pandas.DataFrame(bag.finest.features.numpy()) for bag in bags], labels, "mean", **QUICK)
    answers = [of_tables.predict(one) for one in (tokens, tokens.clone().requires_grad_(), table)]
    assert len({answer.prediction.logits.numpy().tobytes() for answer in answers}) == 1
    assert numbers.record["task"]["name"] == "regression"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"bags": {0: torch.zeros(2, 6), 1: torch.zeros(2, 6)}}, "bags: slide ids are text, got 0"),
        ({"bags": 3}, "bags are a store, its folder or a list, got int"),
        ({"bags": [[["a"]]], "targets": ["x"]}, "bag-00000: tokens must be an array of numbers, got list"),
        ({"targets": pandas.DataFrame({"a": range(24), "b": 1})}, "targets is a table of 2 columns"),
        ({"targets": pandas.DataFrame({"a": range(24)})}, "targets is a table of 1 column. Give one column"),
        ({"targets": np.arange(24)[:, None] % 2}, "targets is a table of 1 column. Give one column"),
        ({"model": torch.nn.Linear(2, 2)}, "a model is called by its name, got Linear. Give one of `list_models()`"),
        ({"device": "gpu"}, "device: no device is called 'gpu'"),
        ({"device": None}, "device: no device is called 'None'"),
        ({"targets": "ab" * 12}, "targets are a list or a dictionary by slide id, got str"),
        ({"targets": None}, "targets are a list or a dictionary by slide id, got NoneType"),
        ({"targets": [("soon", True)] * 24}, "s00: a time is a number, got 'soon'"),
        ({"test": "s00"}, "`test` is a list of patients, got 's00'"),
        ({"test": [f"s{k:02d}" for k in range(23)]}, "1 patients are too few to learn on"),
        ({"seed": -1}, "field 'split.seed': Input should be greater than or equal to 0 (got -1)"),
        ({"seed": 2**64}, "field 'split.seed': Input should be less"),
        ({"threads": 0}, "threads are a whole number from 1 to 1024, got 0"),
        ({"validation": "0.2"}, "validation is a share between 0 and 1, got '0.2'"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_one_line(changed: dict[str, Any], said: str) -> None:
    bags, labels = two_classes()
    with pytest.raises(InputError) as refused:
        fit_with({"bags": bags, "targets": labels, "model": "probe"} | changed)
    assert str(refused.value).startswith(said)


def test_a_run_is_trained_and_asked_on_the_device_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bags, labels = two_classes()
    asked: list[str] = []

    def choose(device: str) -> torch.device:
        asked.append(device)
        return torch.device("cpu")

    monkeypatch.setattr("marble.door.choose", choose)
    monkeypatch.setattr("marble.training.fit.choose", choose)
    run = marble.fit(bags, labels, "mean", device="cuda:1", **QUICK)
    assert asked == ["cuda:1", "cpu"]  # it is chosen once, and what is chosen then trains
    for device in ("auto", torch.device("cpu")):
        assert marble.Run(run.folder, device=device).predict(bags[0]).label == run.predict(bags[0]).label
    with pytest.raises(MarbleError, match="no device is called 'tpu'"):
        marble.Run(run.folder, device="tpu")


def test_what_cannot_be_predicted_is_refused_in_one_line() -> None:
    bags, labels = two_classes()
    run = marble.fit(bags, labels, "probe")
    for source in (None, 3, {"s00": bags[0]}):
        with pytest.raises(InputError, match="bags, arrays"):
            run.predict(source)
    for several in ([], bags[:2]):
        for ask in (run.attention, run.plot, run.explain):
            with pytest.raises(InputError, match=f"one slide is explained at a time, got {len(several)}"):
                ask(several)


def test_determinism_that_only_warned_only_warns_again() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with _torch_as_it_was():
            torch.use_deterministic_algorithms(True)
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
