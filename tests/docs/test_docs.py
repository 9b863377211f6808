# SPDX-License-Identifier: BSD-3-Clause
"""The documentation tells the truth: tables of settings, commands, options, links and names that it mentions exist."""

import importlib.util
import re
import shlex
from pathlib import Path

import click
import pytest

from skydelta.pipeline.simulate import SimulationConfig
from skydelta.stages import registry

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pages(of=PAGES):
    return pytest.mark.parametrize("page", of, ids=lambda p: p.relative_to(ROOT).as_posix())


def fenced(page, *languages):
    return [body for language, body in FENCE.findall(page.read_text()) if language in languages]


def tables():
    spec = importlib.util.spec_from_file_location("docs_tables", ROOT / "docs" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pages(sorted((ROOT / "docs").rglob("*.md")))
def test_tables_of_settings_are_those_of_the_models(page):
    text = page.read_text()
    assert text == tables().filled(text), "run: python docs/tables.py"


@pytest.mark.parametrize("stage", registry.BUILTIN)
def test_every_stage_has_a_page_with_its_settings(stage):
    text = (ROOT / "docs" / "stages" / f"{stage}.md").read_text()
    assert text.startswith(f"# {stage}\n")
    assert f"<!-- settings: {stage} -->" in text


@pytest.mark.parametrize("stage", registry.BUILTIN)
def test_every_setting_has_a_description(stage):
    for name, field in registry.get(stage).config_class().model_fields.items():
        assert field.description, f"{stage}.{name}"


@pages()
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{target} of {page.name}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in slugs, f"{target} of {page.name}"


def commands(page):
    """Words of each shell line of a page, comments and continuation lines resolved."""
    for body in fenced(page, "sh", "bash"):
        for line in body.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words


@pages()
def test_commands_and_their_options_exist(page):
    from skydelta.pipeline.cli import cli

    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(page):
        if words[0] == "make":
            assert set(words[1:]) <= targets, words
        if words[0] != "skydelta" or words[1:] in (["--help"], ["--version"]):
            continue
        command = cli.get_command(click.Context(cli), words[1])
        assert command is not None, f"{page.name}: skydelta {words[1]} does not exist"
        known = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
        if words[1] == "simulate":
            known |= {f"--{name.replace('_', '-')}" for name in SimulationConfig.model_fields}
        used = {w.partition("=")[0] for w in words[2:] if re.match(r"--?[a-z]", w)}
        assert used <= known | {"--help"}, f"{page.name}: {' '.join(words)}"


@pages()
def test_python_blocks_compile(page):
    for body in fenced(page, "python"):
        compile(body, str(page), "exec")


@pages()
def test_public_names_exist(page):
    import skydelta

    for body in fenced(page, "python"):
        for name in re.findall(r"\bskydelta\.([a-zA-Z_]+)\b(?!\.)", body):
            assert hasattr(skydelta, name) or name in ("pipeline", "stages", "io", "kernels"), name
