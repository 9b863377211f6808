# SPDX-License-Identifier: BSD-3-Clause
"""Bad and odd input through the command line: exit code, one line that says why, and products that stay right."""

import json

import numpy as np
import pytest
from astropy.io import fits
from astropy.table import QTable
from scipy.ndimage import distance_transform_edt

from skydelta.io.catalog import Catalog
from skydelta.pipeline.simulate import simulate

QUIET = {"transients": 0, "dipoles": 0, "saturated": 0}


def changed(path, folder, change):
    """A copy of a FITS file with ``change(hdus)`` applied."""
    out = folder / f"changed-{path.name}"
    with fits.open(path) as hdus:
        change(hdus)
        hdus.writeto(out)
    return out


def pair(folder, **settings):
    truth = simulate(
        folder / "pair", **{"size": 320, "seed": 5, "stars": 80, "transients": 3, "saturated": 1} | settings
    )
    return truth.science, truth.reference


@pytest.fixture
def subtract(skydelta, tmp_path):
    """``subtract(science, reference)``: exit code and receipt of the job in ``tmp_path / "out"``."""

    def call(science, reference, *words):
        command = ("difference", science, reference, "-o", tmp_path / "out", "--id", "x", "--device", "cpu", *words)
        result = skydelta(*command)
        receipt = json.loads((tmp_path / "out/items/x/receipt.json").read_text())
        errors = [line for line in result.stderr.splitlines() if line.startswith("skydelta: ")]
        if receipt["error"]:
            assert errors == [f"skydelta: {receipt['error']['message']}"]
            assert "traceback" not in receipt["error"]
        else:
            assert not errors
            consistent(tmp_path)
        assert "Traceback" not in result.output
        return result.exit_code, receipt

    return call


def metrics(receipt):
    return {k: v for step in receipt["steps"] for k, v in step["metrics"].items()}


def flags(receipt):
    return {k for step in receipt["steps"] for k in step["flags"]}


def planes(tmp_path):
    with fits.open(tmp_path / "out/items/x/difference.fits") as hdus:
        header, arrays = hdus["DQ"].header.copy(), [hdus[n].data.copy() for n in ("SCI", "VAR", "DQ", "SNR")]
    return header, *arrays


def consistent(tmp_path):
    """Noise as the variance says; nothing undefined without a mask bit; who is centred on such pixels is flagged."""
    _, image, variance, mask, score = planes(tmp_path)
    usable = np.isfinite(image)
    assert 1.4826 * np.median(np.abs(image / np.sqrt(variance))[usable]) == pytest.approx(1, abs=0.05)
    assert (variance[usable] > 0).all()
    for plane in (image, score):
        assert mask[~np.isfinite(plane)].all()
    found = catalog(tmp_path)
    flagged = found.has("EDGE") | found.has("MASKED")
    assert flagged[~usable[pixels(found)]].all()


def catalog(tmp_path):
    return Catalog.load(tmp_path / "out/items/x/catalog.ecsv")


def pixels(table):
    """Index of the pixels at the positions in a table."""
    return tuple(np.rint(table[name].value).astype(int) for name in "yx")


def found_again(tmp_path, table, snr=10):
    """How many changes of a signal-to-noise ratio on good pixels there are, and how many were found with their sign."""
    changes = QTable.read(table)
    changes = changes[np.abs(changes["snr"]) >= snr]
    changes = changes[np.isfinite(planes(tmp_path)[1])[pixels(changes)]]
    found = catalog(tmp_path)
    dx, dy = (changes[name].value[:, None] - found[name].value for name in "xy")
    # of a dipole either lobe may be the one that is named
    alike = np.sign(changes["flux"].value[:, None]) == np.sign(np.asarray(found["snr"], float))
    alike |= (changes["kind"] == "dipole")[:, None]
    return len(changes), int(((np.hypot(dx, dy) < 2) & alike).any(axis=1).sum())


def good(code, receipt, noise=0.05):
    assert receipt["error"] is None
    assert code == 0
    assert metrics(receipt)["noise_ratio"] == pytest.approx(1, abs=noise)


def without_images(hdus):
    del hdus[1:]
    hdus.append(fits.BinTableHDU.from_columns([fits.Column("a", "E", array=[1.0])]))


def without_wcs(hdus):
    for hdu in hdus[1:]:
        for key in [
            k for k in hdu.header if k.startswith(("CTYPE", "CRVAL", "CRPIX", "CD1_", "CD2_", "CUNIT", "CDELT"))
        ]:
            del hdu.header[key]


def elsewhere(hdus):
    for hdu in hdus[1:]:
        hdu.header["CRVAL1"] += 20


def all_masked(hdus):
    hdus["DQ"].data[:] = 1


def all_nan(hdus):
    hdus["SCI"].data[:] = np.nan


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (lambda p, d: d / "absent.fits", 3, "no such file"),
        (lambda p, d: d, 3, "is a directory"),
        (lambda p, d: (d / "t.fits").write_text("not FITS\n" * 999) and d / "t.fits", 3, "not FITS"),
        (lambda p, d: (d / "e.fits").touch() or d / "e.fits", 3, "is empty"),
        (lambda p, d: (d / "h.fits").write_bytes(p.read_bytes()[:90000]) and d / "h.fits", 3, "truncated"),
        (lambda p, d: changed(p, d, without_images), 3, "no image HDU"),
        (lambda p, d: f"{p}[NONE]", 3, "no HDU 'NONE'; it has"),
        (lambda p, d: changed(p, d, elsewhere), 3, "do not overlap"),
        (lambda p, d: changed(p, d, without_wcs), 3, "no celestial WCS"),
        (lambda p, d: changed(p, d, all_masked), 4, "no usable pixel: all are masked"),
        (lambda p, d: changed(p, d, all_nan), 4, "no usable pixel: all are masked"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
@pytest.mark.parametrize("role", ["science", "reference"])
def test_unusable_files(subtract, simulated, tmp_path, role, change, code, message):
    files = {"science": simulated.science, "reference": simulated.reference}
    files[role] = change(files[role], tmp_path)
    found, receipt = subtract(files["science"], files["reference"])
    assert found == code
    assert message in receipt["error"]["message"]
    assert receipt["status"] == "failed"
    assert not (tmp_path / "out/items/x/difference.fits").exists()
    assert (tmp_path / "out/report.html").exists()


def test_an_unreadable_plane(subtract, simulated, tmp_path):
    code, receipt = subtract(simulated.science, simulated.reference, "--science-mask", tmp_path / "none.fits")
    assert code == 3
    assert "none.fits: no such file" in receipt["error"]["message"]
    assert receipt["error"]["step"] == "science"


def test_images_of_different_shape_on_one_grid(subtract, tmp_path):
    science, reference = pair(tmp_path, same_grid=True)

    def crop(hdus):
        for hdu in hdus[1:]:
            hdu.data = hdu.data[:200, :300]

    code, receipt = subtract(science, changed(reference, tmp_path, crop), "--aligned")
    assert code == 3
    assert "(200, 300)" in receipt["error"]["message"]
    assert "(320, 320)" in receipt["error"]["message"]


def test_one_grid_needs_no_wcs(subtract, tmp_path):
    science, reference = (changed(p, tmp_path, without_wcs) for p in pair(tmp_path, same_grid=True))
    good(*subtract(science, reference, "--aligned"))


@pytest.mark.parametrize("stars", [0, 1, 2, 5])
def test_few_stars_lower_the_order_or_stop_with_the_numbers(subtract, tmp_path, stars):
    code, receipt = subtract(*pair(tmp_path, stars=stars, galaxies=0, **QUIET))
    if receipt["error"]:
        assert code == 4
        assert receipt["error"]["numbers"]
        assert any(c.isdigit() for c in receipt["error"]["message"])
    else:
        assert stars > 0
        good(code, receipt)
        assert {"few_stamps", "order_lowered"} & flags(receipt)


def test_useless_variance_is_masked(subtract, simulated, tmp_path):
    bad = {100: np.nan, 101: np.inf, 102: 0, 103: -5}

    def spoil(hdus):
        for row, value in bad.items():
            hdus["VAR"].data[row, 100:130] = value

    science, reference = (changed(p, tmp_path, spoil) for p in (simulated.science, simulated.reference))
    code, receipt = subtract(science, reference)
    good(code, receipt)
    header, image, _, mask, score = planes(tmp_path)
    for row in bad:
        assert not np.isfinite(image[row, 100:130]).any()
        assert not np.isfinite(score[row, 100:130]).any()
        assert (mask[row, 100:130] >> header["MP_BAD"] & 1 | mask[row, 100:130] >> header["MP_NO_DATA"] & 1).all()
    assert np.isfinite(score[np.isfinite(image)]).mean() > 0.9


def test_undefined_pixels_are_masked_and_do_no_harm(subtract, simulated, tmp_path):
    def spoil(hdus):
        hdus["SCI"].data[200:203, 60:63] = np.nan
        hdus["SCI"].data[100, 160] = np.inf
        hdus["SCI"].data[140, 220] = -np.inf

    good(*subtract(*(changed(p, tmp_path, spoil) for p in (simulated.science, simulated.reference))))
    _, image, _, _, _ = planes(tmp_path)
    assert not np.isfinite(image[[201, 100, 140], [61, 160, 220]]).any()
    assert np.isfinite(image).mean() > 0.7
    expected, found = found_again(tmp_path, simulated.table)
    assert found == expected > 0


def test_saturation_in_the_reference_alone(subtract, tmp_path):
    code, receipt = subtract(*pair(tmp_path, saturation=(1e9, 8000.0)))
    good(code, receipt)
    header, image, _, mask, _ = planes(tmp_path)
    saturated = mask >> header["MP_SAT_TEMPLATE"] & 1
    assert saturated.sum() > 20
    assert not np.isfinite(image[saturated == 1]).any()
    assert not (mask >> header["MP_SAT"] & 1).any()
    assert (distance_transform_edt(saturated == 0)[pixels(catalog(tmp_path))] > 3).all()


@pytest.mark.parametrize(
    "settings",
    [
        {"seeing": (3.8, 2.9)},
        {"seeing": (2.9, 3.8)},
        {"flux_ratio": 0.05},
        {"flux_ratio": 20.0, "saturation": (1e9, 5e4)},
        {"sky": (0.0, 30000.0)},
        {"sky": (30000.0, 0.0), "saturation": (1e6, 5e4)},
        {"size": (511, 1023), "stars": 300},
        {"size": (257, 511), "stars": 120, "distortion": True},
        {"compress": True},
        {"psf": True},
        {"variance": False},
        {"defects": False},
    ],
    ids=str,
)
def test_odd_but_good_pairs(subtract, tmp_path, settings):
    code, receipt = subtract(*pair(tmp_path, **settings))
    good(code, receipt)
    image = planes(tmp_path)[1]
    assert image.shape == tuple(np.broadcast_to(settings.get("size", 320), 2))
    expected, found = found_again(tmp_path, tmp_path / "pair/truth.ecsv")
    assert found == expected > 0


@pytest.mark.parametrize("variance", [True, False])
def test_images_scaled_to_one(subtract, simulated, tmp_path, variance):
    def scale(hdus):
        largest = np.nanmax(hdus["SCI"].data)
        hdus["SCI"].data = hdus["SCI"].data / largest
        if variance:
            hdus["VAR"].data = hdus["VAR"].data / largest**2
        else:
            del hdus["VAR"]
        for key in ("SATURATE", "GAIN", "RDNOISE"):
            hdus["SCI"].header.pop(key, None)

    code, receipt = subtract(*(changed(p, tmp_path, scale) for p in (simulated.science, simulated.reference)))
    good(code, receipt)
    assert np.nanmax(np.abs(planes(tmp_path)[1])) < 2
    expected, found = found_again(tmp_path, simulated.table)
    assert found == expected > 0


@pytest.mark.parametrize("overlap", [0.1, 0.5, 0.9])
def test_partial_overlap(subtract, tmp_path, overlap):
    size = 512
    offset = (size * (1 - overlap), 0.0)
    settings = {"size": size, "stars": 240, "rotation": 0.0, "offset": offset, "defects": False}
    code, receipt = subtract(*pair(tmp_path, registration_rms=0.0, **settings, **QUIET))
    assert overlap > 0.8 or "partial_overlap" in flags(receipt)
    if receipt["error"]:
        assert overlap < 0.2, receipt["error"]["message"]
        assert code in (3, 4)
        assert receipt["error"]["numbers"]
        return
    good(code, receipt)
    usable = np.isfinite(planes(tmp_path)[1])
    assert 0.6 * overlap < usable.mean() <= overlap + 0.01
    # Nothing changed: what is found is false. Along the edges no denser than twice the inside, but for chance.
    columns = np.flatnonzero(usable.any(axis=0))
    found = catalog(tmp_path)
    x, y = found["x"].value, found["y"].value
    low, high = columns[0] + 50, columns[-1] - 50
    inside = (x > low) & (x < high) & (y > 50) & (y < size - 51)
    middle = (high - low) * (size - 100)
    rim = len(columns) * size - middle
    assert (~inside).sum() <= 2 * rim / middle * inside.sum() + 4


def test_an_image_of_another_sky_has_failed(subtract, simulated, tmp_path):
    def mirror(hdus):
        for hdu in hdus[1:]:
            hdu.data = hdu.data[:, ::-1].copy()

    code, receipt = subtract(changed(simulated.science, tmp_path, mirror), simulated.reference)
    assert code == 3
    assert "misaligned" in flags(receipt)
    assert receipt["error"]["step"] == "match"


def test_a_wrong_wcs_is_written_flagged_and_has_failed(subtract, tmp_path):
    code, receipt = subtract(*pair(tmp_path, wcs_error=(5.0, 0.0)))
    assert code == 3
    assert receipt["status"] == "failed"
    assert "misaligned" in flags(receipt)
    assert receipt["error"]["numbers"]["dx"] == pytest.approx(5, abs=0.1)
    assert "1.0 px is allowed" in receipt["error"]["message"]
    with fits.open(tmp_path / "out/items/x/difference.fits") as hdus:
        assert "misaligned" in [v for k, v in hdus["SCI"].header.items() if k.startswith("SDFLAG")]
    assert {"catalog.parquet", "catalog.ecsv", "stamps.fits"} <= set(receipt["outputs"])


def test_a_wrong_wcs_is_mended_by_the_step_register(subtract, tmp_path):
    code, receipt = subtract(*pair(tmp_path, wcs_error=(5.0, -3.0)), "--set", "steps.register.enabled=true")
    good(code, receipt)
    assert "misaligned" not in flags(receipt)
    found = metrics(receipt)
    assert np.hypot(found["registration_dx_px"], found["registration_dy_px"]) < 0.05
    expected, found = found_again(tmp_path, tmp_path / "pair/truth.ecsv")
    assert found == expected > 0


def test_a_variance_ten_times_too_small_is_said_everywhere(skydelta, simulated, tmp_path):
    """Exit code 0, and the ratio and what it does to the candidates on the terminal, in header and report."""

    def scaled(hdus):
        hdus["VAR"].data /= 10

    names = [changed(p, tmp_path, scaled) for p in (simulated.science, simulated.reference)]
    out = tmp_path / "out"
    command = ("difference", *names, "-o", out, "--id", "x", "--device", "cpu", "--set", "steps.detect.threshold=12")
    result = skydelta(*command)
    assert result.exit_code == 0
    found = Catalog.load(out / "items/x/catalog.ecsv")
    receipt = json.loads((out / "items/x/receipt.json").read_text())
    std = metrics(receipt)["snr_std"]
    assert std == pytest.approx(10**0.5, rel=0.05)
    weak = int((np.abs(found["snr"]) < 12 * std).sum())
    assert 0 < weak < len(found)
    lines = result.output.splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("x: done"))
    assert f"{len(found)} candidates, {weak} of them below the threshold in the noise that is there" in lines[first]
    assert lines[first + 1].startswith("  flag noise_scale: signal-to-noise scatters by 3.")
    assert f"{weak} of {len(found)} candidates do not reach 12 sigma of it" in lines[first + 1]
    for line, role in zip(lines[first + 2 : first + 4], ("science", "reference"), strict=True):
        assert line.startswith(f"  flag variance_scale (background_{role}): the sky's noise is 3.")
        assert "times too small" in line
    report = (out / "report.html").read_text()
    assert report.index("noise_scale</code> signal") < report.index("variance_scale (background_science)</code>")
    with fits.open(out / "items/x/difference.fits") as hdus:
        header, score = hdus["SCI"].header, hdus["SNR"].data
    assert {"noise_scale", "variance_scale"} <= {v for k, v in header.items() if k.startswith("SDFLAG")}
    for card in ("SKYNSCI", "SKYNREF", "SNRSTD"):
        assert header[card] == pytest.approx(10**0.5, rel=0.05)
    # a check, and no divisor
    assert 1.4826 * np.nanmedian(np.abs(score)) == pytest.approx(10**0.5, rel=0.05)


def test_what_is_lost_to_the_variance_is_said(subtract, simulated, tmp_path):
    def cut(hdus):
        hdus["VAR"].data[:, :50], hdus["VAR"].data[:40, 50:] = np.nan, -1

    code, receipt = subtract(changed(simulated.science, tmp_path, cut), simulated.reference)
    good(code, receipt)
    said = {s["id"]: s["flags"].get("pixels_lost") for s in receipt["steps"] if s["id"] in ("science", "reference")}
    share = (50 * 320 + 40 * 270) / 320**2
    assert said["reference"] is None
    assert f"without a valid variance {share:.1%}" in said["science"]
    with fits.open(tmp_path / "out/items/x/difference.fits") as hdus:
        header = hdus["SCI"].header
    assert "pixels_lost" in [v for k, v in header.items() if k.startswith("SDFLAG")]
    assert "SNRSTD" in header and 0.9 < header["SKYNSCI"] < 1.1
