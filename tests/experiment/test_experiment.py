"""From an experiment file to planned runs: patients apart, slides accounted for, choices made on validation."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from marble import files
from marble.bags import BagStore, EncoderIdentity, Geometry, Provenance
from marble.bags.bag import Bag
from marble.errors import InputError, RunError, SpecError
from marble.experiment import Experiment, ExperimentSpec, find_store
from marble.models import small
from marble.reports import write_report
from marble.reports.collect import collect
from marble.synthetic.cohort import write_cohort
from marble.training.run import HeldOut, execute
from tests.bags.making import random_bag
from tests.training.jobs import plan

SHIPPED = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_experiments_are_valid(path: Path) -> None:
    spec = Experiment.load(path).spec
    assert spec.models
    assert spec.train.recipe == "common"  # by the small recipe MARBLE has another mixer, whatever is compared
    assert ExperimentSpec.parse(tomllib.loads(spec.to_toml())) == spec


def test_patients_are_apart_and_everyone_is_used(tmp_path: Path) -> None:
    for planned in plan(tmp_path, patients=24):
        parts = [
            {case.case_id for case in planned.job.train},
            {case.case_id for case in planned.job.val},
            {case.case_id for case in HeldOut.model_validate_json(Path(planned.test).read_text()).cases},
        ]
        assert sum(map(len, parts)) == len(set.union(*parts)) == 24


def test_slides_without_a_bag_are_excluded_by_reason(tmp_path: Path) -> None:
    table, store = write_cohort(tmp_path, "burden", 24, two_slides=0.0)
    store.record_path("P0000-S0").unlink()
    store.note("P0001-S0", "failed", "read", "truncated")
    path = tmp_path / "e.toml"
    path.write_text(
        'cohort = "cohort.csv"\ntask = "classification"\nbags = { store = "bags" }\n'
        'split = { scheme = "kfold", folds = 4, repeats = 1 }\nmodels = [{ name = "mean" }]\n'
    )
    planned = Experiment.load(path).plan(tmp_path / "out")
    assert planned[0].about["slides"] == {
        "in": 24,
        "used": 22,
        "excluded": {"failed: truncated": 1, "no bag in the store": 1},
    }
    assert len(table.read_text().splitlines()) == 25


def test_two_rows_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text('cohort = "c.csv"\ntask = "classification"\nmodels = [{ name = "mean" }, { name = "mean" }]\n')
    with pytest.raises(SpecError, match=r"two models are called 'mean'.*label"):
        Experiment.load(path)
    path.write_text('cohort = "c.csv"\ntask = "classification"\nmodels = [{ name = "maen" }]\n')
    with pytest.raises(SpecError, match=r"e\.toml: unknown model 'maen'; did you mean 'mean'\?"):
        Experiment.load(path)
    path.write_text('cohort = "c.csv"\ntask = "classification"\nmodels = "mean"\n')
    with pytest.raises(SpecError, match="field 'models': Input should be a list"):
        Experiment.load(path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ('d_state = "four"', "option 'd_state' of model 'marble': Input should be a valid integer (got 'four')"),
        ("d_state = 4.5", "option 'd_state' of model 'marble'"),
        ("d_state = true", "option 'd_state' of model 'marble'"),
        ("choose = { drop_rate = [0.1, '0.2'] }", "option 'drop_rate' of model 'marble'"),
        ("d_sate = 4", "did you mean 'd_state'?"),
    ],
)
def test_an_option_of_another_type_is_refused_before_anything_runs(tmp_path: Path, options: str, said: str) -> None:
    path = tmp_path / "e.toml"
    path.write_text(f'cohort = "c.csv"\ntask = "classification"\nmodels = [{{ name = "marble", {options} }}]\n')
    with pytest.raises(InputError) as refused:
        Experiment.load(path)
    assert said in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("name", "labels", "said"),
    [
        ("../x", ["a"], "the experiment's folder cannot be called '../x'"),
        ("..", ["a"], "the experiment's folder cannot be called '..'"),
        ("C:\\x", ["a"], "the experiment's folder cannot be called"),
        ("x", [".."], "a model's folder cannot be called '..'"),
        ("x", ["a/b", "a:b"], "the runs of model 'a:b' would lie in the folder of model 'a/b'"),
        ("x", ["ABMIL", "abmil"], "the runs of model 'abmil' would lie in the folder of model 'ABMIL'"),
        ("x", ["Report"], "the runs of model 'Report' would lie in the experiment's folder 'report'"),
    ],
)
def test_no_name_leads_out_of_the_folder_or_into_anothers(
    tmp_path: Path, name: str, labels: list[str], said: str
) -> None:
    path = tmp_path / "e.toml"
    models = ", ".join(f'{{ name = "mean", label = "{label}" }}' for label in labels)
    path.write_text(f'name = \'{name}\'\ncohort = "c.csv"\ntask = "classification"\nmodels = [{models}]\n')
    with pytest.raises(SpecError) as refused:
        Experiment.load(path)
    assert said in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("models", "said"),
    [
        (
            '{ name = "mean", choose = { hidden = [8, 16] } }, { name = "mean", hidden = 8, label = "mean hidden=8" }',
            "the runs of model 'mean hidden=8' would lie in the folder of model 'mean hidden=8'",
        ),
        ('{ name = "mean", choose = { hidden = [8, 8] } }', "choose.hidden of 'mean' has 8 twice"),
        ('{ name = "mean", choose = { hidden = [] } }', "choose.hidden of 'mean' has no value to train"),
    ],
)
def test_every_value_to_choose_from_has_a_folder_of_its_own(tmp_path: Path, models: str, said: str) -> None:
    path = tmp_path / "e.toml"
    path.write_text(f'cohort = "c.csv"\ntask = "classification"\nmodels = [{models}]\n')
    with pytest.raises(SpecError) as refused:
        Experiment.load(path)
    assert said in str(refused.value)


def test_the_right_store_is_found(tmp_path: Path) -> None:
    def store(name: str, magnifications: tuple[float, ...], encoder: str) -> None:
        bag = random_bag()
        levels = tuple(Geometry(magnification=m, mpp=10 / m, tile_px=256, l0_extent_px=256) for m in magnifications)
        identity = EncoderIdentity(name=encoder, dim=8, input_px=256)
        BagStore(tmp_path / name).save(Bag("s", bag.levels, Provenance(levels=levels, encoders=(identity,))))

    with pytest.raises(InputError, match=r"no bags here.*marble extract"):
        find_store(tmp_path)
    store("a", (5, 20), "uni_v1")
    store("b", (10, 40), "uni_v1")
    store("c", (10, 40), "lite0")
    assert find_store(tmp_path, (40, 10), "lite0").root.name == "c"
    assert find_store(tmp_path, (5, 20)).root.name == "a"
    assert find_store(tmp_path / "b").root.name == "b"
    with pytest.raises(InputError, match=r"several stores fit: b \(.* of uni_v1\); c \(.* of lite0\)"):
        find_store(tmp_path, (10, 40))
    with pytest.raises(InputError) as refused:
        find_store(tmp_path / "a", (2.5, 10), "lite0")
    said = "no store holds magnifications 2.5, 10 and encoder lite0: a (magnifications 5, 20 of uni_v1)"
    assert said in str(refused.value)


def test_a_store_of_routed_slides_is_not_taken_for_the_one_of_whole_slides(tmp_path: Path) -> None:
    whole, routed = BagStore(tmp_path / "0123"), BagStore(tmp_path / "0123-routed-4567")
    for store in (whole, routed):
        store.save(random_bag())
    for found in (find_store(tmp_path), BagStore.find(tmp_path), BagStore.find(tmp_path, like=whole.common())):
        assert found.root == whole.root
    assert find_store(routed.root).root == BagStore.find(routed.root).root == routed.root


def test_candidates_are_chosen_on_validation(tmp_path: Path) -> None:
    models = '[{ name = "mean", hidden = 8, label = "m", choose = { dropout = [0.0, 0.9] } }]'
    planned = plan(tmp_path, models=models)
    assert len(planned) == 8
    for one in planned:
        execute(one)
    (model,) = collect(tmp_path / "out" / "tiny").models
    assert set(model.variants) == {"dropout=0.0", "dropout=0.9"}
    for repeat in model.repeats:
        rivals = [r for variant in model.variants.values() for r in variant if r.number == repeat.number]
        assert repeat.selected_on == max(r.selected_on for r in rivals)


def test_noise_for_test_labels_changes_no_choice_between_candidates(tmp_path: Path) -> None:
    models = '[{ name = "mean", hidden = 8, label = "m", choose = { dropout = [0.0, 0.9] } }]'
    chosen = []
    for noisy in (False, True):
        folder = tmp_path / str(noisy)
        for one in plan(folder, models=models):
            if noisy:
                held_out = json.loads(Path(one.test).read_text())
                for number, case in enumerate(held_out["cases"]):
                    case["target"]["label"] = ["negative", "positive"][number % 2]
                files.publish_json(one.test, held_out)
            execute(one)
        (model,) = collect(folder / "out" / "tiny").models
        chosen.append(
            [(repeat.number, repeat.record["about"]["variant"], repeat.selected_on) for repeat in model.repeats]
        )
    assert chosen[0] == chosen[1]


def test_a_table_of_different_patients_is_refused(tmp_path: Path) -> None:
    models = '[{ name = "mean", hidden = 8, label = "a" }, { name = "max", hidden = 8, label = "b" }]'
    planned = plan(tmp_path, models=models)
    execute(planned[0])
    execute(planned[3])
    with pytest.raises(RunError, match="no repeat was finished by all models"):
        collect(tmp_path / "out" / "tiny")
    held_out = json.loads(Path(planned[1].test).read_text())
    files.publish_json(planned[1].test, {"cases": held_out["cases"][1:]})
    execute(planned[1])
    with pytest.raises(RunError, match="not tested on the same patients in the same repeats"):
        collect(tmp_path / "out" / "tiny")


def test_a_table_compares_the_repeats_that_all_models_have_finished(tmp_path: Path) -> None:
    models = '[{ name = "mean", hidden = 8, label = "a" }, { name = "max", hidden = 8, label = "b" }]'
    planned = plan(tmp_path, models=models)
    for run in planned[:-1]:
        execute(run)
    missing = planned[-1].about["repeat"]
    results = collect(tmp_path / "out" / "tiny")
    assert results.left_out == (missing,)
    assert all(missing not in [repeat.number for repeat in model.repeats] for model in results.models)
    write_report(tmp_path / "out" / "tiny", tmp_path / "report")
    assert (
        f"MISSING: repeats {missing}, which not every model has finished"
        in (tmp_path / "report" / "table.md").read_text()
    )


def test_every_table_has_the_probe_and_the_number_of_tiles_unless_told_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    head = 'cohort = { path = "synthetic:burden", patients = 24 }\ntask = "classification"\n'
    head += 'split = { scheme = "kfold", folds = 4, repeats = 1 }\n'

    def models(text: str) -> list[str]:
        path.write_text(head + text)
        return [
            one.about["model"] for one in Experiment.load(path).plan(tmp_path / "out")[:5] if one.about["repeat"] == 0
        ]

    assert models('models = [{ name = "mean" }]') == ["mean", "probe", "tiles"]
    assert models('models = [{ name = "probe", levels = 1 }, { name = "mean" }]') == [
        "probe(levels=1)",
        "mean",
        "tiles",
    ]
    assert models('models = [{ name = "mean" }]\nbaselines = []') == ["mean"]
    with pytest.raises(InputError, match="unknown model 'prob'"):
        models('models = [{ name = "mean" }]\nbaselines = ["prob"]')


def test_few_slides_get_the_small_recipe_and_the_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = '[{ name = "marble", dropout = 0.5 }, { name = "abmil", recipe = "authors" }, { name = "probe" }]'
    few = plan(tmp_path / "few", models=models, train=', recipe = "auto"')[:3]
    slides = sum(len(case.slides) for case in few[0].job.train)
    assert [one.job.recipe_name for one in few] == ["small", "authors", "solved"]
    assert few[0].about["recipe"] == f"small: {slides} training slides, fewer than 300"
    assert few[1].about["recipe"] == "authors: the experiment asks for it"
    assert few[0].job.options["dropout"] == 0.5  # what the experiment sets stays
    assert few[0].job.options["project"] == 64
    assert few[0].job.recipe.standardise
    assert few[0].job.recipe.select_by == "last"
    assert not few[1].job.recipe.standardise
    monkeypatch.setattr("marble.experiment.experiment.SMALL_BELOW", slides)
    many = plan(tmp_path / "many", models=models, train=', recipe = "auto"')[0]
    assert many.job.recipe_name == "common"
    assert "project" not in many.job.options
    assert many.about["recipe"] == f"common: {slides} training slides, at least {slides}"


def test_standardise_is_a_switch_for_all_models_and_for_one(tmp_path: Path) -> None:
    models = '[{ name = "mean" }, { name = "max", standardise = false }, { name = "abmil", recipe = "authors" }]'
    found = plan(tmp_path, models=models, train=", standardise = true")[:3]
    assert [one.job.recipe.standardise for one in found] == [True, False, True]
    assert not plan(tmp_path / "plain", models=models)[0].job.recipe.standardise


@pytest.mark.parametrize(("slides", "epochs"), [(2, 20), (16, 16), (60, 10), (240, 10), (5000, 10)])
def test_epochs_of_the_small_recipe_are_more_for_few_slides(slides: int, epochs: int) -> None:
    assert small(slides).epochs == epochs


def test_a_small_survival_cohort_is_compared_in_groups() -> None:
    recipe = small(240, "survival")
    assert (recipe.risk_set, recipe.epochs) == ("group", 40)
    assert small(240).risk_set == "bank"


def test_patients_without_a_slide_are_not_counted_as_slides(tmp_path: Path) -> None:
    table, store = write_cohort(tmp_path, "burden", patients=24, two_slides=0.0)
    cases = [line.split(",") for line in table.read_text().splitlines()[1:]]
    clinical = ["PATIENT,label", *(f"{case},{label}" for case, _, label in cases), "P9998,positive", "P9999,negative"]
    slides = ["PATIENT,FILENAME", *(f"{case},{slide}.h5" for case, slide, _ in cases)]
    (tmp_path / "clinical.csv").write_text("\n".join(clinical) + "\n")
    (tmp_path / "slides.csv").write_text("\n".join(slides) + "\n")
    (tmp_path / "e.toml").write_text(
        'cohort = { path = "clinical.csv", slide_table = "slides.csv", label = "label" }\ntask = "classification"\n'
        f'bags = {{ store = "{store.root}" }}\nmodels = [{{ name = "mean" }}]\nsplit = {{ repeats = 1 }}\n'
    )
    planned = Experiment.load(tmp_path / "e.toml").plan(tmp_path / "out")[0]
    assert planned.about["slides"] == {"in": 24, "used": 24, "excluded": {}, "patients_without_slides": 2}


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("train = { epochs = true }", "train.epochs: a number is asked for, not true or false"),
        ("train = { betas = [true, 0.9] }", "train.betas: a number is asked for"),
        ("train = { betas = [0.9] }", "field 'train.betas': too few values (got a list of 1)"),
        ("train = { betas = [0.9, 1.5] }", "field 'train.betas.1': Input should be less than 1 (got 1.5)"),
        ('models = ["mean"]', "field 'models.0': Input should be a table, as { key = value } (got 'mean')"),
        ('bags = "bags"', "field 'bags': Input should be a table, as { key = value } (got 'bags')"),
        ("models = []", "field 'models': List should have at least 1 item, not 0 (got a list of 0)"),
        ("train = { milestones = [-3] }", "field 'train.milestones.0': Input should be greater than or equal to 1"),
        ("train = { class_weights = [true, false] }", "train.class_weights: a number is asked for"),
        ("split = { seed = true }", "split.seed: a number is asked for"),
        ("paper = { marble = { auc = true } }", "paper: a number is asked for"),
        ("bags = { magnifications = [true] }", "bags.magnifications: a number is asked for"),
        ('models = [{ name = "marble", d_state = 0 }]', "option 'd_state' of model 'marble': Input should be greater"),
        (
            'models = [{ name = "marble", d_state = true }]',
            "option 'd_state' of model 'marble': Input should be a valid",
        ),
        ('models = [{ name = "marble", choose = { d_state = [4, 0] } }]', "option 'd_state' of model 'marble'"),
        ('models = [{ name = "mean", choose = { dropout = [] } }]', "models.0: choose.dropout of 'mean' has no value"),
        (
            'models = [{ name = "mean", choose = { dropout = [0.1, 0.2, 0.1] } }]',
            "models.0: choose.dropout of 'mean' has 0.1 twice",
        ),
        (
            'models = [{ name = "mean", label = "m", dropout = 0.1, choose = { dropout = [0.1, 0.2] } }]',
            "models.0: 'm' has dropout both as an option and in choose",
        ),
        (
            'models = [{ name = "abmil", dropout = 1.5 }]',
            "option 'dropout' of model 'abmil': Input should be less than 1",
        ),
        ('models = [{ name = "clam-sb", size = 3 }]', "model 'clam-sb': unknown size '3'. Valid: small, big"),
    ],
)
def test_what_no_fit_could_use_is_refused_when_the_file_is_read(tmp_path: Path, part: str, said: str) -> None:
    path = tmp_path / "e.toml"
    models = "" if part.startswith("models") else '\nmodels = [{ name = "marble" }]'
    path.write_text(f'cohort = "synthetic:burden"\ntask = "classification"\n{part}{models}\n')
    with pytest.raises(InputError) as refused:
        Experiment.load(path)
    assert str(refused.value).startswith(f"{path}: {said}")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ('name = "abmil", level = 7', "model 'abmil(level=7)': model reads level 7, but the bag has 2 levels"),
        ('name = "marble", levels = 3', "model 'marble(levels=3)': the bag has 2 levels, the model was built for 3"),
        ('name = "marble", headdim = 7, label = "odd"', "model 'odd': "),
        ('name = "marble", mixer = "mamba3"', "model 'marble(mixer=mamba3)': "),
    ],
)
def test_a_model_that_does_not_fit_the_bags_is_refused_before_the_first_run(
    tmp_path: Path, model: str, said: str
) -> None:
    path = tmp_path / "e.toml"
    path.write_text(
        'cohort = { path = "synthetic:burden", patients = 12 }\ntask = "classification"\n'
        f'train = {{ recipe = "common" }}\nmodels = [{{ name = "mean" }}, {{ {model} }}]\n'
    )
    with pytest.raises(SpecError) as refused:
        Experiment.load(path).plan(tmp_path / "out")
    assert str(refused.value).startswith(f"{path}, {said}")


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ('positive = "Tumor"', "unknown class for positive 'Tumor'. Valid: negative, positive"),
        ('decision = "threshold"\ncohort.classes = ["a", "b", "c"]', 'decision = "threshold" needs two classes'),
        ('positive = "a"\ncohort.classes = ["a", "b", "c"]', "positive is for two classes, these are 3. Leave it out"),
    ],
)
def test_what_does_not_go_with_the_classes_is_a_fault_of_the_file(tmp_path: Path, part: str, said: str) -> None:
    table, _ = write_cohort(tmp_path, "burden", 24, two_slides=0.0)
    if "classes" in part:
        header, *rows = table.read_text().splitlines()
        classes = [row.rpartition(",")[0] + "," + "abc"[number % 3] for number, row in enumerate(rows)]
        table.write_text("\n".join([header, *classes]))
    path = tmp_path / "e.toml"
    path.write_text(
        f'cohort.path = "cohort.csv"\n{part}\ntask = "classification"\nbags = {{ store = "bags" }}\n'
        'models = [{ name = "mean" }]\n'
    )
    with pytest.raises(SpecError) as refused:
        Experiment.load(path).plan(tmp_path / "out")
    assert str(refused.value).startswith(f"{path}: {said}")


@pytest.mark.parametrize("name", ["clam-sb", "clam-mb", "hagmil"])
def test_an_instance_loss_of_two_classes_needs_two_outputs(tmp_path: Path, name: str) -> None:
    path = tmp_path / "e.toml"
    path.write_text(
        'cohort = { path = "synthetic:burden", patients = 12 }\ntask = "classification"\n'
        f'train = {{ recipe = "common", class_loss = "bernoulli" }}\nmodels = [{{ name = "{name}" }}]\n'
    )
    with pytest.raises(SpecError, match="needs an output per class, but with this class_loss 2 classes have 1"):
        Experiment.load(path).plan(tmp_path / "out")
