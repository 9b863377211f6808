# SPDX-License-Identifier: BSD-3-Clause
"""The workflow file: strict keys, places in messages, overrides, where paths are relative to."""

import json

import pytest

from skydelta.errors import ConfigError
from skydelta.pipeline import workflow
from skydelta.pipeline.workflow import load, schema, shipped

HEAD = 'version = 1\nname = "w"\n'
MATCH = HEAD + '[[steps]]\nstage = "load"\n[[steps]]\nstage = "match"\n'


def written(folder, text):
    path = folder / "w.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MATCH + "order = 9\n", "steps[1].match.order: 9 is above"),
        (MATCH + "order = true\n", "steps[1].match.order: True: a value is needed, not true or false"),
        (MATCH + "clip = false\n", "steps[1].match.clip: False: a value is needed, not true or false"),
        (MATCH + "ordre = 1\n", "steps[1].match.ordre: unknown key"),
        (MATCH + "inputs = { image = 'science' }\n", "steps[1].inputs.image: match has no such port; it has science"),
        (MATCH + "outputs = { kernels = 'k' }\n", "steps[1].outputs.kernels: match has no such port; it has kernel"),
        (MATCH + "enabled = 1\n", "steps[1].enabled: 1; true or false is needed"),
        (MATCH.replace('load"', 'load"\nenabled = false') + "enabled = false\n", "every step has enabled = false"),
        (MATCH + "inputs = 'science'\n", "steps[1].inputs: a table of port = name is needed"),
        (MATCH + "id = 'a b'\n", "steps[1].id: 'a b'; letters, digits"),
        (MATCH + "id = 'load'\n", "steps[1].id: 'load' is used twice"),
        (HEAD + "[[steps]]\nstage = 'mtach'\n", "steps[0].stage: stage 'mtach' is unknown; known: load"),
        (HEAD + "[[steps]]\norder = 2\n", "steps[0].stage: missing"),
        (HEAD + "steps = []\n", "steps: []"),
        (HEAD + "steps = ['load']\n", "steps.0: 'load'"),
        (HEAD, "steps: missing"),
        ("version = 2\n" + MATCH[12:], "version: 2 is not one of 1"),
        ("[run]\nexecutor = 'slurm'\n", "missing"),
        (MATCH.replace("[[", "[run]\nexecutor = 'slurm'\n[[", 1), "run.executor: 'slurm' is not one of"),
        (MATCH.replace("[[", "[run]\ncolour = 1\n[[", 1), "run.colour: unknown key"),
        (MATCH.replace("[[", "[inputs]\nscience = 3\n[[", 1), "inputs.science"),
        ("version = 1\nname = \n", "not TOML"),
    ],
)
def test_errors_name_the_place_in_the_file(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_unreadable_workflow(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"no such file, and the shipped ones are .*difference"):
        load("nothing")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "binary.toml")


def test_overrides_by_id_and_by_stage():
    flow = load(
        "difference",
        set_=[
            "steps.match.order=1",
            "steps.background.order=1",
            "steps.psf_science.inputs={image='science'}",
            "steps.align.method=lanczos3",
            "run.device=cpu",
        ],
    )
    config = {s.id: s.stage.config for s in flow.steps}
    assert config["match"].order == 1
    assert config["background_science"].order == config["background_reference"].order == 1
    assert config["align"].method == "lanczos3"
    assert flow.run.device == "cpu"


def test_an_id_comes_before_a_stage_of_that_name(tmp_path):
    text = HEAD + "[[steps]]\nid = 'background'\nstage = 'load'\n[[steps]]\nid = 'sky'\nstage = 'background'\n"
    flow = load(written(tmp_path, text), set_=["steps.background.dtype=native"])
    assert flow.steps[0].stage.config.dtype == "native"


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("steps.match.order", "path=value is needed"),
        ("order=3", "path=value is needed"),
        ("steps..order=3", "path=value is needed"),
        ("steps.mtach.order=3", "no step 'mtach'; the steps are science, reference, cosmic_rays_science"),
        ("steps.match=3", "steps.<id or stage>.<key>=value"),
        ("steps.match.order=9", "steps[13].match.order: 9 is above"),
        ("steps.match.ordre=1", "steps[13].match.ordre: unknown key"),
        ("name.x=1", "'name' is no table"),
        ("run.colour=red", "run.colour: unknown key"),
    ],
)
def test_bad_overrides(assignment, message):
    with pytest.raises(ConfigError) as error:
        load("difference", set_=[assignment])
    assert message in str(error.value)


def test_values_are_toml_or_plain_words():
    flow = load("difference", set_=["steps.match.order=1", "steps.science.image=SCI", "steps.reference.image=2"])
    config = {s.id: s.stage.config for s in flow.steps}
    assert config["science"].image == "SCI"
    assert config["reference"].image == 2


def test_paths_are_relative_to_where_they_are_said(tmp_path, monkeypatch):
    (tmp_path / "flows").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    text = (
        HEAD
        + '[inputs]\nscience = "../a.fits[1]"\nreference = "r.fits"\n'
        + "[[steps]]\nid = 's'\nstage = 'load'\nvariance = 'v.fits[VAR]'\n[[steps]]\nid = 'r'\nstage = 'load'\n"
    )
    path = written(tmp_path / "flows", text)
    flow = load(path, set_=["inputs.reference=b.fits", "steps.r.mask=m.fits[2]"])
    assert flow.inputs["science"] == str(tmp_path / "flows" / "../a.fits[1]")
    assert flow.inputs["reference"] == str(tmp_path / "here" / "b.fits")
    assert flow.steps[0].files(flow.folder) == {"variance": str(tmp_path / "flows" / "v.fits[VAR]")}
    assert flow.steps[1].files(flow.folder) == {"mask": str(tmp_path / "here" / "m.fits[2]")}
    assert load(path, inputs={"science": "c.fits"}).inputs["science"] == str(tmp_path / "here" / "c.fits")


def test_a_table_replaces_files_and_files_a_table(tmp_path):
    path = written(tmp_path, MATCH.replace("[[", "[inputs]\nscience = 'a'\nreference = 'b'\n[[", 1))
    assert list(load(path, set_=["inputs.table=t.ecsv"]).inputs) == ["table"]
    assert list(load(path, inputs={"table": "t.ecsv"}).inputs) == ["table"]
    path = written(tmp_path, MATCH.replace("[[", "[inputs]\ntable = 't.csv'\n[[", 1))
    assert list(load(path, inputs={"science": "a"}).inputs) == ["science"]


def test_a_folder_named_like_a_shipped_workflow_is_not_taken_for_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "difference").mkdir()
    assert load("difference").name == "difference"


def test_the_shipped_workflow_is_the_main_job():
    assert "difference" in shipped()
    flow = load("difference")
    assert [s.stage.name for s in flow.steps] == [
        *("load", "load", "background", "background", "align", "psf", "psf"),
        *("match", "difference", "detect", "fit", "write"),
    ]
    assert flow.inputs == {}


def test_schema_knows_every_stage_and_every_setting():
    made = json.loads(json.dumps(schema()))
    variants = {
        v["properties"]["stage"]["const"]: v["properties"] for v in made["properties"]["steps"]["items"]["oneOf"]
    }
    for step in load("difference").steps:
        assert set(step.stage.config_class().model_fields) <= set(variants[step.stage.name])


def test_schema_refers_to_nothing_that_is_missing():
    made = schema()

    def references(part):
        if isinstance(part, dict):
            yield from [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        for child in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            yield from references(child)

    for reference in references(made):
        assert reference.removeprefix("#/$defs/") in made.get("$defs", {}), reference


def test_reserved_keys_are_no_settings():
    for step in load("difference").steps:
        assert not set(workflow.RESERVED) & set(step.stage.config_class().model_fields)


def test_a_step_that_is_not_enabled_is_not_there():
    plain, again = load("difference"), load("difference", set_=["steps.load_kernel.enabled=false"])
    assert "load_kernel" not in [s.id for s in plain.steps]
    assert plain.described() == again.described()
    kernel = load("difference", set_=["steps.load_kernel.enabled=true", "steps.load_kernel.file=k.fits"])
    assert [s.id for s in kernel.steps if s.id not in [t.id for t in plain.steps]] == ["load_kernel"]
    with pytest.raises(ConfigError, match=r"steps\[12\].load_kernel.file: missing"):
        load("difference", set_=["steps.load_kernel.enabled=true"])
