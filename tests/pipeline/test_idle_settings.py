# SPDX-License-Identifier: BSD-3-Clause
"""A setting that has no effect beside the others is refused, however it is given: in Python, by workflow or option."""

import numpy as np
import pytest
import support_cli
import support_io
from astropy.io import fits

import skydelta
from skydelta.errors import ConfigError
from skydelta.pipeline.simulate import SimulationConfig
from skydelta.pipeline.workflow import load
from skydelta.stages import registry

VALUES = {"catalog": "stars.ecsv", "value": 25.0, "scales": [1.0, 2.0]}
"""Of settings whose type does not tell an example."""


def example(model, name):
    """A value that a field takes, its default where it has one: that, too, has no effect."""
    field = model.model_fields[name]
    if field.default is not None:
        return field.default
    return VALUES.get(name, 0.5)


def cases():
    for stage in registry.names():
        model = registry.get(stage).config_class()
        for name, needs in model.only_where.items():
            for other, allowed in needs.items():
                yield pytest.param(stage, model, name, other, allowed, id=f"{stage}.{name} {other}")


def conflict(model, name, other, allowed):
    """The setting beside a value of the other that leaves it without effect."""
    field = model.model_fields[other]
    if allowed == (None,):
        state = VALUES[other]
    elif allowed == (False,):
        state = True
    else:
        state = next(v for v in field.annotation.__args__ if v not in allowed)
    return {name: example(model, name), other: state}


@pytest.mark.parametrize(("stage", "model", "name", "other", "allowed"), list(cases()))
def test_refused_by_every_stage_in_every_way(tmp_path, stage, model, name, other, allowed):
    settings = conflict(model, name, other, allowed)
    words = rf"{stage}\.{name}: .* has no effect where {other} is"
    with pytest.raises(ConfigError, match=f"^{words}"):
        registry.get(stage)(**settings)
    values = {k: str(v).lower() if isinstance(v, bool) else repr(v) for k, v in settings.items()}
    lines = [f"{k} = {v}" for k, v in values.items()]
    (tmp_path / "w.toml").write_text(
        "\n".join(["version = 1", 'name = "w"', "[[steps]]", f'stage = "{stage}"', *lines])
    )
    with pytest.raises(ConfigError, match=rf"steps\[0\]\.{words}"):
        load(tmp_path / "w.toml")
    (tmp_path / "v.toml").write_text("\n".join(["version = 1", 'name = "w"', "[[steps]]", f'stage = "{stage}"']))
    with pytest.raises(ConfigError, match=words):
        load(tmp_path / "v.toml", set_=[f"steps.{stage}.{k}={v}" for k, v in values.items()])


def test_what_has_an_effect_is_taken():
    stack, align = registry.get("stack"), registry.get("align")
    assert stack(method="clipped", sigma=3, core=1, weights="pixel").config.given() == (
        "method",
        "weights",
        "sigma",
        "core",
    )
    assert stack(resampling="drizzle", pixfrac=0.5, pixel_scale=0.2, scaling="none").config.pixfrac == 0.5
    assert stack(aligned=True, scales=[1, 2], method="weighted", weights="equal").config.aligned
    assert align(method="drizzle", pixfrac=1, tolerance=1e-3, aligned=False).config.given()


@pytest.fixture
def files(tmp_path, rng):
    out = []
    for name in "ab":
        exposure = skydelta.Exposure(rng.normal(0, 1, (60, 60)).astype(np.float32), wcs=support_io.tan())
        skydelta.write(exposure, tmp_path / f"{name}.fits")
        out.append(tmp_path / f"{name}.fits")
    return out


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("stack", "--method mean --sigma 3", "stack.sigma: 3.0 has no effect where method is mean"),
        ("stack", "--method median --weights pixel", "stack.weights: 'pixel' has no effect where method is median"),
        ("stack", "--aligned --resampling drizzle --pixfrac 0.5", "stack.resampling: 'drizzle' has no effect where al"),
        ("stack", "--pixfrac 0.5", "stack.pixfrac: 0.5 has no effect where resampling is bspline3"),
        ("stack", "--aligned --pixel-scale 0.2", "stack.pixel_scale: 0.2 has no effect where aligned is True"),
        ("stack", "--onto {1} --pixel-scale 0.2", "stack.pixel_scale: 0.2 has no effect where onto is a grid"),
        ("align", "--pixfrac 1", "align.pixfrac: 1.0 has no effect where method is bspline3"),
        ("align", "--method drizzle --pixfrac nan", "align.pixfrac: nan; a finite number is needed"),
        ("register", "--method phase --order 2", "register.order: 2 has no effect where method is phase"),
        ("register", "--epoch 2000", "register.epoch: 2000.0 has no effect where onto is an image"),
        ("detect", "--background none --cell 32", "detect: cell is of a background, which is none"),
        ("simulate", "--same-grid --rotation 1", "simulate.rotation: 1.0 has no effect where same_grid is True"),
    ],
)
def test_refused_by_commands(files, tmp_path, command, options, said):
    words = options.format(*files).split()
    files = {"stack": files, "align": [files[0], "--onto", files[1]], "register": [files[0], "--onto", files[1]],
             "detect": files[:1], "simulate": [tmp_path / "sim"]}[command]  # fmt: skip
    out = (
        [] if command == "simulate" else ["-o", tmp_path / "out.ecsv" if command == "detect" else tmp_path / "out.fits"]
    )
    done = support_cli.call(command, *files, *out, *words)
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith(f"skydelta: {said}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out.fits").exists()


def test_refused_in_python(files):
    a, b = (skydelta.read(f, device="cpu") for f in files)
    with pytest.raises(ConfigError, match=r"align\.pixfrac: 0\.5 has no effect"):
        skydelta.align(a, onto=b, pixfrac=0.5)
    with pytest.raises(ConfigError, match=r"align\.pixfrac: 1\.0 has no effect"):
        skydelta.reproject(a, b, pixfrac=1.0)
    with pytest.raises(ConfigError, match=r"align\.pixfrac: 1\.0 has no effect"):
        skydelta.noise_correlation(a, b, pixfrac=1.0)
    with pytest.raises(ConfigError, match=r"stack\.pixel_scale: 0\.3 has no effect where onto is a grid"):
        skydelta.stack([a, b], onto=b, pixel_scale=0.3)
    with pytest.raises(ConfigError, match=r"simulate\.offset: .* has no effect where same_grid is True"):
        skydelta.simulate("never", same_grid=True, offset=(1.0, 2.0))
    assert SimulationConfig(same_grid=True, registration_rms=0.1).given() == ("same_grid", "registration_rms")
    for name in ("gain", "read_noise"):
        with pytest.raises(ConfigError, match=f"read: {name} has no effect where variance is given"):
            skydelta.read(a.image, variance=np.ones_like(a.image), **{name: 2.0})


def test_what_only_a_file_tells_is_a_warning(tmp_path, rng):
    """Whether a file has a variance and a mask of its own is known once it is read."""
    image = rng.normal(100, 1, (60, 60)).astype(np.float32)
    sat = fits.ImageHDU(np.zeros((60, 60), np.int32), name="DQ")
    sat.header["MP_SAT"] = 1
    hdus = [fits.PrimaryHDU(), fits.ImageHDU(image, name="SCI"), fits.ImageHDU(np.ones_like(image), name="VAR"), sat]
    fits.HDUList(hdus).writeto(tmp_path / "a.fits")
    found = skydelta.read(tmp_path / "a.fits", gain=2.0, saturation=500.0, device="cpu")
    assert found.notes["warnings"] == [
        "saturation = 500 is not used: the mask says which pixels are saturated",
        "gain is not used: the variance is that of HDU 2 (VAR)",
    ]
    assert "warnings" not in skydelta.read(tmp_path / "a.fits", device="cpu").notes


WORKFLOW = """
version = 1
name = "w"
[inputs]
image = "a.fits"
table = "t.ecsv"
[[steps]]
stage = "load"
inputs = { path = "image" }
outputs = { image = "picture" }
[[steps]]
stage = "background"
inputs = { image = "picture" }
[[steps]]
stage = "psf"
inputs = { image = "picture" }
[[steps]]
stage = "sources"
inputs = { image = "picture" }
"""


def test_inputs_that_leave_a_setting_without_effect_are_told_before_a_run(files, tmp_path):
    (tmp_path / "w.toml").write_text(WORKFLOW.replace('table = "t.ecsv"\n', "") + "only_inside = true\n")
    done = support_cli.call("check", tmp_path / "w.toml")
    assert done.exit_code == 2
    assert "steps[3] (sources): sources.only_inside: True has no effect where no positions are given" in done.stderr
    table, psf = {"x": [30.0], "y": [30.0]}, support_io.stamp(11)
    image = skydelta.Exposure(np.zeros((60, 60), np.float32), np.ones((60, 60), np.float32))
    for setting in ({"threshold": 4.0}, {"contrast": 0.1}, {"negative": True}):
        with pytest.raises(
            ConfigError, match=f"(sources.|detect: ){next(iter(setting))}.* has no effect where positions"
        ):
            skydelta.detect(image, psf=psf, positions=table, **setting)
