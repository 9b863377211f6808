# SPDX-License-Identifier: BSD-3-Clause
"""The workflow `photometry` through the command line, against the fluxes and magnitudes that were simulated."""

import numpy as np
import pytest
from astropy.io import fits
from astropy.table import Table
from support_align import plane
from support_cli import call
from support_stack import GAIN, SHAPE, grid_field

from skydelta.io.catalog import Catalog

POINT = 27.25


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    """Two visits of one field, the second with one star 30 % brighter, targets, and a catalogue of half the stars."""
    folder, rng = tmp_path_factory.mktemp("night"), np.random.default_rng(11)
    field = grid_field(rng)
    fluxes = []
    for k in range(2):
        wcs = plane(SHAPE, turn=0.5 * k, shift=(3.2 * k, -1.7 * k))
        flux = field.flux * np.where(np.arange(len(field.flux)) == 5, 1 + 0.3 * k, 1)
        light = type(field)(field.sky, flux).draw(wcs, SHAPE)
        variance = 25 + (light + 100) / GAIN
        image = light + 100 + rng.normal(size=SHAPE) * np.sqrt(variance)
        header = wcs.to_header()
        header["MJD-OBS"] = 60000.0 + k
        hdus = [fits.PrimaryHDU(), fits.ImageHDU(image.astype("f4"), header, "SCI")]
        fits.HDUList([*hdus, fits.ImageHDU(variance.astype("f4"), name="VAR")]).writeto(folder / f"v{k}.fits")
        fluxes.append(flux)
    ids = np.array([f"t{i:03d}" for i in range(len(field.flux))])
    Table({"id": ids, "ra": field.sky[0], "dec": field.sky[1]}).write(folder / "targets.ecsv")
    mag = POINT - 2.5 * np.log10(field.flux) + rng.normal(0, 0.01, len(ids))
    mag[2] += 1.5  # a variable
    half = np.s_[::2]
    stars = Table({"ra": field.sky[0][half], "dec": field.sky[1][half], "gmag": mag[half]})
    stars.write(folder / "stars.ecsv")
    return folder, np.array(fluxes), ids


def words(folder, out, *more):
    inputs = f"inputs.image=['{folder}/v0.fits','{folder}/v1.fits']"
    return ("run", "photometry", "--set", inputs, "--set", f"inputs.positions={folder}/targets.ecsv", *more, "-o", out,
            "--device", "cpu")  # fmt: skip


def test_fluxes_magnitudes_and_light_curves(night, tmp_path, figure):
    folder, fluxes, ids = night
    zero = ("enabled=true", f"catalog={folder}/stars.ecsv", "magnitude=gmag")
    settings = [w for s in zero for w in ("--set", f"steps.zero_point.{s}")]
    assert call(*words(folder, tmp_path / "out", *settings, "--dry-run")).exit_code == 0
    done = call(*words(folder, tmp_path / "out", *settings))
    assert done.exit_code == 0, done.output
    for k in range(2):
        table = Catalog.load(tmp_path / "out" / "items" / f"v{k}" / "catalog.ecsv")
        assert list(table["id"]) == list(ids)
        flux, error = (np.asarray(table[c].value, float) for c in ("flux", "flux_err"))
        known = np.isfinite(flux)
        assert known.mean() > 0.95
        ratio = flux[known] / fluxes[k][known]
        figure(f"photometry, visit {k}: median flux over the true one", float(np.median(ratio)), (0.985, 1.015))
        spread = 1.4826 * np.median(np.abs((flux / np.median(ratio) - fluxes[k]) / error)[known])
        figure(f"photometry, visit {k}: robust pull of the fluxes", float(spread), (0.7, 1.6))
        true = POINT - 2.5 * np.log10(fluxes[k])
        figure(
            f"photometry, visit {k}: magnitudes",
            float(np.median(table["mag"].value[known] - true[known])),
            (-0.01, 0.01),
        )
        assert table["mag"].unit == "mag" and 0 < table.meta["zero_point"]["error"] < 0.01
    curves = Catalog.load(tmp_path / "out" / "catalog.parquet")
    assert len(curves) == 2 * len(ids)
    rows = curves[np.asarray(curves["id"]) == "t005"]
    rows.sort("mjd")
    assert len(set(rows["object"])) == 1 and list(rows["mjd"].value) == [60000, 60001]
    assert float(rows["flux"][1] / rows["flux"][0]) == pytest.approx(1.3, abs=0.06)


def test_a_given_zero_point_and_errors(night, tmp_path):
    folder, _, _ = night
    on = ("--set", "steps.zero_point.enabled=true")
    done = call(*words(folder, tmp_path / "a", *on, "--set", "steps.zero_point.value=25.0"))
    assert done.exit_code == 0, done.output
    table = Catalog.load(tmp_path / "a" / "items" / "v0" / "catalog.ecsv")
    bright = np.asarray(table["flux"].value) > 0
    np.testing.assert_allclose(table["mag"].value[bright], 25 - 2.5 * np.log10(table["flux"].value[bright]))
    (folder / "bad.csv").write_text("ra,dec\n10,20\n10,95\n")
    for more, code, said in (
        (("--set", f"inputs.positions={folder}/bad.csv"), 3, "bad.csv: row 2, column dec: 95 is outside -90 to 90"),
        (on, 2, "zero_point: one of value and catalog is needed, not neither"),
        ((*on, "--set", "steps.zero_point.value=nan"), 2, "zero_point.value: "),
        ((*on, "--set", f"steps.zero_point.catalog={folder}/stars.ecsv"), 3, "no column 'mag'"),
        (("--set", f"inputs.positions={folder}/gone.ecsv"), 3, "gone.ecsv"),
    ):
        done = call(*words(folder, tmp_path / "b", *more, "--overwrite"))
        assert done.exit_code == code and said in done.stderr, done.output
    for file, said in (("stars.ecsv", "no column 'mag'"), ("gone.ecsv", "gone.ecsv: no such file")):
        done = call(*words(folder, tmp_path / "c", *on, "--set", f"steps.zero_point.catalog={folder}/{file}"))
        assert done.exit_code == 3 and said in done.stderr and not (tmp_path / "c").exists(), "before any work"
