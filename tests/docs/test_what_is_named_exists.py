"""A flag, verb, key or make target that a message or a page names can be used as it is named."""

from __future__ import annotations

import re
import tomllib
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from marble.cli import VERBS
from marble.encoders.catalogue import CATALOGUE
from marble.experiment import ExperimentSpec
from marble.extract import ExtractSpec
from marble.models import MODELS, model_options
from tests.docs.pages import PAGES, ROOT, SOURCES, Block, blocks, flags_of_verbs, hints, messages

FLAGS = flags_of_verbs()
ANY_FLAG = set().union(*FLAGS.values()) | {"--version"}
#: flags of other programs that pages and messages name
FOREIGN = {
    "--address", "--array", "--backend-store-uri", "--block", "--compression", "--cpus-per-task", "--exclude",
    "--extra-index-url", "--force-reinstall", "--generate", "--golden", "--gpus", "--gpus-per-task", "--gres",
    "--head", "--index-url", "--job-name", "--logdir", "--mem", "--nodes", "--ntasks", "--ntasks-per-node",
    "--num-cpus", "--num-gpus", "--output", "--partition", "--port", "--pyramid", "--require-hashes", "--strict",
    "--tile", "--time", "--wrap",
}  # fmt: skip
#: pages that show other programs' commands beside ours; of these only ours are checked
ABOUT_OTHERS = {"docs/how-to/coming-from.md"}
FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z-]+)")
VERB = re.compile(r"(?:^|[`\s(])marble ([a-z][a-z-]+)((?:[^`\n|]|\\\n)*)")
MAKE = re.compile(r"`make ([a-z-]+)")


def _check(place: str, text: str, *, code: bool) -> list[str]:
    wrong = []
    if place not in ABOUT_OTHERS:
        wrong += [f"{place}: no verb has {flag}" for flag in FLAG.findall(text) if flag not in ANY_FLAG | FOREIGN]
    quoted = text if code else "\n".join(re.findall(r"`[^`]+`", text))
    for verb, rest in VERB.findall(quoted):
        if verb == "count" and "add-a-command" in place:  # the verb that the page adds
            continue
        if verb not in VERBS:
            wrong.append(f"{place}: there is no `marble {verb}`")
        else:
            given = FLAG.findall(rest.partition("#")[0])
            wrong += [f"{place}: `marble {verb}` has no {flag}" for flag in given if flag not in FLAGS[verb]]
    return wrong


def test_flags_and_verbs_in_messages() -> None:
    wrong = [fault for place, text in messages() for fault in _check(place, text, code=False)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_flags_verbs_and_targets_in_pages(path: Any) -> None:
    name = str(path.relative_to(ROOT))
    text = path.read_text()
    wrong = _check(name, text, code=False)
    for block in blocks(path):
        if block.language in ("", "bash", "sh", "shell", "console"):
            wrong += _check(name, block.text, code=True)
    makefile = (ROOT / "Makefile").read_text()
    wrong += [f"{name}: no `make {t}`" for t in MAKE.findall(text) if not re.search(rf"^{t}:", makefile, re.M)]
    assert not wrong, "\n".join(wrong)


def _keys(kind: type[BaseModel], prefix: str = "") -> set[str]:
    found = set()
    for name, field in kind.model_fields.items():
        found |= {name, f"{prefix}{name}"}
        waiting = [field.annotation]
        while waiting:
            part = waiting.pop()
            waiting += get_args(part)
            if isinstance(part, type) and issubclass(part, BaseModel):
                found |= _keys(part, f"{prefix}{name}.")
    return found


#: what hints may write as `name=` or `name =`: keys of files, options of models, arguments of our functions
KEYS = _keys(ExperimentSpec) | _keys(ExtractSpec) | {key for name in MODELS for key in model_options(name)}
ARGUMENTS = {"dim", "prefix", "weights_only", "parent", "ratio", "cells", "slide_id", "python", "outputs"}


def test_keys_in_hints() -> None:
    wrong = []
    for place, text in hints():
        named = re.findall(r"(?<![\w.-])([a-z_][\w.]*) ?=(?![=\w]*\()", re.sub(r"python -c .*|--weights .*", "", text))
        flags = {flag.removeprefix("--").replace("-", "_") for flag in ANY_FLAG}
        wrong += [f"{place}: '{name} =' is no key: {text}" for name in named if name not in KEYS | ARGUMENTS | flags]
        wrong += [
            f"{place}: '{name}' is no key: {text}"
            for name in re.findall(r"\b((?:bags|split|train|cohort|pyramid|tissue)\.[a-z_]+)\b", text)
            if name not in KEYS
        ]
    assert not wrong, "\n".join(wrong)


TOML = [(path, block) for path in PAGES for block in blocks(path) if block.language == "toml"]


@pytest.mark.parametrize(("path", "block"), TOML, ids=lambda value: getattr(value, "stem", None))
def test_settings_in_pages_are_valid(path: Any, block: Block) -> None:
    body = tomllib.loads(block.text)
    if "pyramid" in body:
        assert ExtractSpec.parse(body, where=path)
        return
    if {"project", "tool"} & set(body):
        return
    full = {"cohort": "cohort.csv", "task": "classification", "models": [{"name": "marble"}], **body}
    for model in ExperimentSpec.parse(full, where=path).models:
        assert set(model.options) | set(model.choose) <= set(model_options(model.name)), path


LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("path", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Any) -> None:
    wrong = []
    for target in LINK.findall(re.sub(r"```.*?```", "", path.read_text(), flags=re.S)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        found = path if not file else (path.parent / file).resolve()
        if not found.exists():
            wrong.append(f"{target}: no such file")
        elif anchor and found.suffix == ".md":
            titles = [re.sub(r"[^\w\- ]", "", t.lower()).strip().replace(" ", "-")
                      for t in re.findall(r"^#+ (.*)$", found.read_text(), re.M)]  # fmt: skip
            if anchor not in titles:
                wrong.append(f"{target}: no such heading")
    assert not wrong, "\n".join(wrong)


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    inside = [path.relative_to(ROOT / "docs") for path in PAGES if (ROOT / "docs") in path.parents]
    assert [str(path) for path in inside if str(path) not in menu] == []


def test_every_verb_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "commands.md").read_text()
    assert [verb for verb in VERBS if f"`marble {verb}" not in text] == []


def test_every_key_of_an_experiment_is_on_its_page() -> None:
    page = (ROOT / "docs" / "reference" / "experiment-file.md").read_text()
    keys = {key for key in _keys(ExperimentSpec) if "." not in key} - {"options"}  # a model's own, without that word
    assert keys - set(re.findall(r"`(\w+)`", page)) == set()


def test_every_setting_of_an_extraction_is_in_the_reference_with_its_default() -> None:
    page = ROOT / "docs" / "reference" / "commands.md"
    (shown,) = [tomllib.loads(block.text) for block in blocks(page) if "[pyramid]" in block.text]
    usual = tomllib.loads(
        ExtractSpec.parse({"pyramid": {"magnifications": shown["pyramid"]["magnifications"]}}).to_toml()
    )
    del usual["pyramid"]["mpps"]  # in place of magnifications
    assert shown == usual


def test_every_variable_of_the_environment_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    named = {name for path in SOURCES for name in re.findall(r'"(MARBLE_[A-Z_]+)"', path.read_text())}
    assert named - set(re.findall(r"MARBLE_[A-Z_]+", page)) == set()


def test_every_encoder_is_on_the_page_of_extraction() -> None:
    page = (ROOT / "docs" / "how-to" / "slides-to-bags.md").read_text()
    rows = {cells[0].strip("`"): cells for cells in map(_cells, page.splitlines()) if len(cells) == 6}
    for name, row in CATALOGUE.items():
        _, token, seen, trained, licence, weights = rows[name]
        assert (token, seen, licence) == (str(row.dim), f"{row.input_px} px", row.licence)
        assert not row.recommended_mpp or trained == ", ".join(f"{mpp:g}" for mpp in row.recommended_mpp)
        assert (weights == "gated") == row.gated


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []


@pytest.mark.parametrize("path", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_holds_the_marks_of_an_unresolved_merge(path: Any) -> None:
    assert not re.search(r"^(<{7} |={7}$|>{7} )", path.read_text(), re.M)
