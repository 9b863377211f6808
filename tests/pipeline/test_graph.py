# SPDX-License-Identifier: BSD-3-Clause
"""Ports and names: types are checked before anything is read, and nothing is kept longer than it is needed."""

import pytest

from skydelta.errors import ConfigError
from skydelta.pipeline.graph import bind, external
from skydelta.pipeline.workflow import load

PATHS = {"science": str, "reference": str}


def steps(folder, text):
    path = folder / "w.toml"
    path.write_text('version = 1\nname = "w"\n' + text)
    return load(path).steps


def test_the_main_job_needs_two_paths_and_gives_names_as_documented():
    flow = load("difference")
    assert list(external(flow.steps)) == ["science", "reference"]
    bound = {b.step.id: b for b in bind(flow.steps, PATHS)}
    assert bound["science"].outputs == {"image": "science"}
    assert bound["align"].inputs["image"] == "reference"
    assert bound["align"].outputs["aligned"] == "reference"
    assert bound["psf_reference"].outputs["image"] == "reference"
    assert bound["fit"].inputs == {"image": "whitened", "catalog": "catalog"}
    assert bound["fit"].outputs == {"catalog": "catalog"}
    assert set(bound["write"].inputs.values()) >= {"difference", "score", "kernel", "catalog", "science", "matched"}


def test_names_are_freed_after_their_last_reader():
    bound = bind(load("difference").steps, PATHS)
    frees = {b.step.id: b.frees for b in bound}
    assert "reference" in frees["difference"]
    assert "whitened" in frees["fit"]
    assert "science" in frees["write"]
    freed = [name for b in bound for name in b.frees]
    assert sorted(freed) == sorted({n for b in bound for n in (*b.inputs.values(), *b.outputs.values())})


def test_a_wrong_type_is_found_before_anything_is_read(tmp_path):
    made = steps(tmp_path, "[[steps]]\nstage = 'load'\n[[steps]]\nstage = 'psf'\ninputs = { image = 'other' }\n")
    with pytest.raises(ConfigError) as error:
        bind(made, {"path": str, "other": str})
    assert str(error.value) == "steps[1] (psf): input image = 'other' is str; Exposure is needed"


def test_a_missing_name_is_named_with_what_there_is(tmp_path):
    made = steps(
        tmp_path, "[[steps]]\nstage = 'load'\ninputs = { path = 'science' }\n[[steps]]\nstage = 'background'\n"
    )
    with pytest.raises(ConfigError) as error:
        bind(made, {"science": str})
    assert "steps[1] (background): input image = 'image': nothing provides it; known here: science" in str(error.value)


def test_an_output_by_its_port_its_name_or_what_it_replaces(sums):
    text = (
        "[[steps]]\nid = 'a'\nstage = 'toy_read'\ninputs = { path = 'left' }\n"
        "[[steps]]\nid = 'b'\nstage = 'toy_read'\ninputs = { path = 'other' }\noutputs = { number = 'right' }\n"
        "[[steps]]\nstage = 'toy_add'\n"
    )
    made = steps(sums, text)
    assert external(made) == {"left": "steps[0] (a)", "other": "steps[1] (b)"}
    a, b, add = bind(made, {"left": str, "other": str})
    assert a.outputs == {"number": "left"}
    assert b.outputs == {"number": "right"}
    assert add.inputs == {"left": "left", "right": "right"}
    assert add.outputs == {"sum": "sum", "word": "word"}


def test_an_optional_input_is_left_out_unless_it_is_asked_for(sums):
    text = (
        "[[steps]]\nid = 'a'\nstage = 'toy_read'\ninputs = { path = 'left' }\n"
        "[[steps]]\nid = 'b'\nstage = 'toy_read'\ninputs = { path = 'right' }\n"
        "[[steps]]\nstage = 'toy_add'\ninputs = { more = 'absent' }\n"
    )
    with pytest.raises(ConfigError, match="input more = 'absent': nothing provides it"):
        bind(steps(sums, text), {"left": str, "right": str})
