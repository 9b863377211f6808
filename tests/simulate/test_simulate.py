# SPDX-License-Identifier: BSD-3-Clause
"""The simulator: its pixels follow its truth, its noise its variance, and equal settings give equal bytes."""

import hashlib

import numpy as np
import pytest
from astropy.io import fits
from astropy.table import QTable
from astropy.wcs import WCS
from scipy.integrate import dblquad

from skydelta.errors import ConfigError, InputError
from skydelta.pipeline.simulate import PLANES, build, simulate
from skydelta.pipeline.skymodel import PsfField

SMALL = {"size": 256, "seed": 4, "stars": 60, "galaxies": 3, "transients": 6, "dipoles": 2, "saturated": 1}


@pytest.fixture(scope="module")
def scene():
    return build(**SMALL)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_same_settings_give_the_same_bytes(tmp_path):
    first, second = simulate(tmp_path / "a", **SMALL), simulate(tmp_path / "b", **SMALL)
    for name in ("science", "reference", "table"):
        assert digest(getattr(first, name)) == digest(getattr(second, name))
    third = simulate(tmp_path / "c", **{**SMALL, "seed": 5})
    assert digest(first.science) != digest(third.science)


@pytest.mark.parametrize("name", ["science.fits", "reference.fits", "truth.ecsv", "stars.ecsv"])
def test_what_is_there_is_not_overwritten_unasked(tmp_path, name):
    mine = tmp_path / name
    mine.write_bytes(b"mine")
    with pytest.raises(ConfigError, match=rf"{name} exists; .* overwrite"):
        simulate(tmp_path, **SMALL)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert mine.read_bytes() == b"mine"
    simulate(tmp_path, overwrite=True, **SMALL)
    assert mine.read_bytes() != b"mine"


@pytest.mark.parametrize("compress", [False, True])
def test_files_hold_what_was_built(tmp_path, scene, compress):
    truth = simulate(tmp_path, **SMALL, compress=compress, psf=True)
    for role, path in (("science", truth.science), ("reference", truth.reference)):
        frame = getattr(scene, role)
        with fits.open(path) as hdus:
            assert [h.name for h in hdus] == ["PRIMARY", "SCI", "VAR", "DQ", "PSF"]
            np.testing.assert_array_equal(hdus["SCI"].data, frame.image)
            np.testing.assert_array_equal(hdus["VAR"].data, frame.variance)
            np.testing.assert_array_equal(hdus["DQ"].data, frame.mask)
            assert {k[3:]: v for k, v in hdus["DQ"].header.items() if k.startswith("MP_")} == PLANES[role]
            assert hdus["PSF"].header["PSFKIND"] == "polynomial"
    table = QTable.read(truth.table)
    assert table.colnames == ["kind", "x", "y", "ra", "dec", "flux", "snr", "host", "dx", "dy"]
    assert (table["kind"] == "transient").sum() == 6
    assert (table["kind"] == "dipole").sum() == 2
    assert (table["flux"] < 0).any()


def test_psf_is_the_integral_over_each_pixel():
    psf = PsfField(2.4, (0.0, 0.0, 0.0, 0.0), (0.1, 0.0, 0.0), (-0.15, 0.0, 0.0), (100, 100))
    stamp = psf.stamp(50, 50, 12, 0.3, -0.2)
    alpha2, mxx, mxy, myy = psf.parameters(np.array([50.0]), np.array([50.0]))[0]

    def moffat(y, x):
        return 2.5 / (np.pi * alpha2) * (1 + (mxx * x * x + 2 * mxy * x * y + myy * y * y) / alpha2) ** -3.5

    for i, j in ((0, 0), (1, -1), (-3, 2), (7, 0)):
        x, y = i - 0.3, j + 0.2
        exact = dblquad(moffat, x - 0.5, x + 0.5, y - 0.5, y + 0.5)[0]
        assert stamp[12 + j, 12 + i] == pytest.approx(exact, rel=2e-3, abs=1e-6)
    assert stamp.sum() == pytest.approx(1, abs=3e-3)


def test_pixel_psf_follows_the_field(scene):
    psf = scene.science.psf
    pixels = psf.pixels()
    for x, y in ((20.0, 30.0), (128.0, 128.0), (240.0, 10.0)):
        true = psf.stamp(x, y, 20)
        assert np.abs(pixels.at(x, y) - true).max() < 0.01 * true.max()


def test_fwhm_follows_the_setting():
    psf = PsfField(3.5, (0.2, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (200, 200))
    for x, width in ((99.5, 3.5), (199.0, 3.5 * (1 + 0.2 * 199 / 200))):
        alpha2 = psf.parameters(np.array([x]), np.array([99.5]))[0, 0]
        assert (1 + (width / 2) ** 2 / alpha2) ** -3.5 == pytest.approx(0.5, rel=1e-6)


def test_noise_is_the_variance(scene):
    for role in ("science", "reference"):
        frame = getattr(scene, role)
        good = frame.mask == 0
        pull = (frame.image - frame.model)[good] / np.sqrt(frame.variance[good])
        assert pull.std() == pytest.approx(1, abs=0.02)
        assert pull.mean() == pytest.approx(0, abs=0.02)


def test_flux_position_and_ratio_of_the_sources():
    scene = build(
        size=256, seed=2, stars=0, galaxies=0, saturated=0, transients=1, dipoles=1, flux_ratio=0.5, defects=False
    )
    y, x = np.mgrid[:256, :256]
    transient, dipole = scene.changes
    light = scene.science.model - scene.science.static
    near = np.hypot(x - transient["x"].value, y - transient["y"].value) < 20
    assert light[near].sum() == pytest.approx(transient["flux"].value, rel=5e-3)
    assert (light * x)[near].sum() / light[near].sum() == pytest.approx(transient["x"].value, abs=0.01)
    faded = scene.reference.model - scene.reference.static
    back = dipole["x"].value - dipole["dx"].value, dipole["y"].value - dipole["dy"].value
    rx, ry = (a[0] for a in scene.transform(*(np.array([c]) for c in back)))
    near = np.hypot(x - rx, y - ry) < 20
    assert faded[near].sum() == pytest.approx(2 * dipole["flux"].value, rel=5e-3)
    assert (faded * y)[near].sum() / faded[near].sum() == pytest.approx(ry, abs=0.01)


def test_reference_grid_is_what_its_header_says(tmp_path):
    truth = simulate(tmp_path, **SMALL, distortion=True, registration_rms=0.0)
    science, reference = (WCS(fits.getheader(p, "SCI")) for p in (truth.science, truth.reference))
    assert science.sip is not None
    x, y = reference.all_world2pix(truth.stars["ra"], truth.stars["dec"], 0)
    assert np.hypot(x - truth.stars["x_reference"].value, y - truth.stars["y_reference"].value).max() < 1e-6
    shift = truth.stars["x_reference"] - truth.stars["x"]
    assert 2 < np.median(shift.value) < 7


def test_wcs_error_moves_the_header_only(tmp_path):
    right, wrong = (simulate(tmp_path / n, **SMALL, wcs_error=e) for n, e in (("a", (0, 0)), ("b", (5, 0))))
    np.testing.assert_array_equal(fits.getdata(right.reference, "SCI"), fits.getdata(wrong.reference, "SCI"))
    moved = fits.getheader(wrong.reference, "SCI")["CRPIX1"] - fits.getheader(right.reference, "SCI")["CRPIX1"]
    assert moved == pytest.approx(5)


def test_same_grid_and_odd_sizes():
    scene = build(size=(131, 255), seed=1, stars=10, galaxies=0, transients=2, dipoles=0, saturated=0, same_grid=True)
    assert scene.science.image.shape == (131, 255)
    dx = scene.stars["x_reference"] - scene.stars["x"]
    assert np.abs(dx.value).max() < 0.1
    np.testing.assert_allclose(scene.science.wcs.wcs.crpix, scene.reference.wcs.wcs.crpix)


def test_saturated_pixels_are_full_and_flagged(scene):
    frame = scene.science
    flagged = (frame.mask & (1 << PLANES["science"]["SAT"])) != 0
    assert flagged.sum() > 20
    assert np.nanmax(frame.image[~flagged]) < 50000
    assert np.nanmax(frame.image) == pytest.approx(50000)


def test_snr_is_what_an_ideal_filter_finds():
    """Monte Carlo of the matched filter on many noise realisations of one source."""
    scene = build(
        size=128,
        seed=3,
        stars=0,
        galaxies=0,
        saturated=0,
        transients=1,
        dipoles=0,
        same_grid=True,
        defects=False,
        registration_rms=0.0,
    )
    row = scene.changes[0]
    x, y = row["x"].value, row["y"].value
    half, n = 20, 64
    at = round(y) - half, round(x) - half
    sections = {r: getattr(scene, r) for r in ("science", "reference")}
    level = {r: float(np.median(f.variance)) for r, f in sections.items()}
    p, r = (np.zeros((n, n)) for _ in range(2))
    for a, f in ((p, sections["science"]), (r, sections["reference"])):
        a[: 2 * half + 1, : 2 * half + 1] = f.psf.stamp(x, y, half, x - round(x), y - round(y))
    kernel = 0.8 * np.fft.fft2(p) / np.fft.fft2(r)
    weight = np.conj(np.fft.fft2(p)) / (level["science"] + level["reference"] * np.abs(kernel) ** 2)
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(400):
        noise = rng.normal(0, np.sqrt(level["science"]), (n, n)), rng.normal(0, np.sqrt(level["reference"]), (n, n))
        draws.append(np.mean((np.fft.fft2(noise[0]) - kernel * np.fft.fft2(noise[1])) * weight).real)
    signal = row["flux"].value * np.mean(np.fft.fft2(p) * weight).real
    assert at[0] > 0 and at[1] > 0
    assert signal / np.std(draws) == pytest.approx(row["snr"], rel=0.12)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"size": 64}, ConfigError, r"size\.0: 64 is below 128"),
        ({"size": (300, 1)}, ConfigError, r"size\.1: 1 is below 128"),
        ({"stars": True}, ConfigError, "stars: True: a value is needed"),
        ({"seeing": 3}, ConfigError, "seeing: 3 is no list"),
        ({"size": "abc"}, ConfigError, "size: 'abc': .*one integer, or two"),
        ({"seed": -1}, ConfigError, "seed: -1 is below 0"),
        ({"colour": 3}, ConfigError, "colour: unknown key"),
        (
            {"size": 128, "transients": 400},
            InputError,
            "no room for change .*transients, dipoles or stars, or a larger size",
        ),
        ({"size": 128, "dipoles": 400, "transients": 0}, InputError, "no room for change"),
        ({"size": 128, "stars": 20000}, InputError, "no room for any change .*transients = 0"),
    ],
)
def test_bad_settings_are_one_line(settings, error, words):
    with pytest.raises(error, match=words) as caught:
        build(**settings)
    assert "\n" not in str(caught.value)


def test_small_scenes_have_what_finds_room(caplog):
    """Seeds of which some had no room for all changes that are there by default."""
    short = 0
    for size in (128, 160, 192):
        for seed in range(1, 9):
            caplog.clear()
            scene = build(size=size, seed=seed, defects=False)
            x, y = (np.asarray(scene.changes[name].value) for name in ("x", "y"))
            apart = np.hypot(x[:, None] - x, y[:, None] - y) + np.where(np.eye(len(x)), np.inf, 0)
            assert 1 <= len(x) <= 6
            assert apart.min() > 30
            said = [r.message for r in caplog.records if "room" in r.message]
            assert (len(x) == 6) == (not said)
            assert not said or said[0].startswith(f"simulate: room for {len(x)} of 6 changes in {size} x {size} px")
            short += len(x) < 6
    assert short


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"seeing": (np.nan, 2.0)}, "seeing.0: nan"),
        ({"seeing": (3.0, np.inf)}, "seeing.1: inf"),
        ({"seeing": (0.0, 2.0)}, "seeing.0: 0.0 is not above 0"),
        ({"seeing": (-3.0, 2.0)}, "seeing.0: -3.0 is not above 0"),
        ({"gain": (-1.0, 1.0)}, "gain.0: -1.0 is not above 0"),
        ({"gain": (1.0, 0.0)}, "gain.1: 0.0 is not above 0"),
        ({"read_noise": (-1.0, 1.0)}, "read_noise.0: -1.0 is below 0"),
        ({"sky": (np.nan, 1.0)}, "sky.0: nan"),
        ({"sky": (-1000.0, 1.0)}, "sky.0: -1000.0 is below 0"),
        ({"saturation": (np.nan, 1.0)}, "saturation.0: nan"),
        ({"rotation": np.nan}, "rotation: nan"),
        ({"size": 10_000_000}, "size 10000000 x 10000000 with .* objects takes 1.1e.07 GB; at most"),
        ({"stars": 10**12}, "objects takes 4e.05 GB; at most"),
    ],
    ids=str,
)
def test_settings_that_make_no_scene_are_refused_in_one_line(tmp_path, setting, message):
    with pytest.raises(ConfigError, match=message) as error:
        simulate(tmp_path / "pair", **{**SMALL, **setting})
    assert "\n" not in str(error.value)
    assert not (tmp_path / "pair").exists()


def test_the_folder_of_a_run_is_refused(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds the outputs of a run"):
        simulate(tmp_path, size=128, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_a_full_disk_leaves_no_empty_folder(tmp_path, monkeypatch):
    def full(path, data):
        raise InputError(f"{path}: No space left on device")

    monkeypatch.setattr("skydelta.pipeline.simulate.write_bytes", full)
    (tmp_path / "there").mkdir()
    for folder in ("new/er", "there"):
        with pytest.raises(InputError, match="No space left"):
            simulate(tmp_path / folder, size=128)
    assert [p.name for p in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize("size", [128, (130, 200)])
def test_defects_of_small_scenes_leave_room_for_a_star(size):
    """A kernel needs a star with about 80 px around it that no defect is in."""
    for seed in range(1, 7):
        scene, clean = (build(size=size, seed=seed, saturated=0, defects=on) for on in (True, False))
        for frame, other in ((scene.science, clean.science), (scene.reference, clean.reference)):
            inner = np.s_[10:-10, 10:-10]
            assert not frame.mask[inner].any()
            assert frame.mask.any(), "there are some beside the edges"
            assert other.mask.any() == 0
            assert np.isfinite(frame.image[inner]).all()
            assert (frame.mask & (1 << PLANES[frame.role]["BAD"])).any()
    large = build(size=192, seed=1, saturated=0)
    assert large.reference.mask[10:-10, 10:-10].any()
