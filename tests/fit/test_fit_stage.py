# SPDX-License-Identifier: BSD-3-Clause
"""The fit stage: columns, choice of the model, dipoles and their degeneracy, and rows that cannot be fitted."""

import numpy as np
import pytest
from astropy import units as u
from astropy.wcs import WCS
from support_sources import SIGMA, draw, exposure, fisher_error, flux_of, gaussian, lattice, nearest

from skydelta.errors import InputError
from skydelta.io.catalog import Catalog
from skydelta.io.exposure import Exposure
from skydelta.io.planes import MaskPlanes
from skydelta.io.psf import GridPsf
from skydelta.kernels.backend import resolve
from skydelta.stages.base import Context
from skydelta.stages.detect import Detect
from skydelta.stages.fit import BATCH, Fit, flux_limit

COLUMNS = [
    "id", "x", "y", "ra", "dec", "flux", "flux_err", "snr", "model", "flags", "x_err", "y_err",
    "flux_err_kernel", "background", "chi2", "dof", "bic", "n_eval", "status", "moment_x", "moment_y", "moment_xx",
    "moment_xy", "moment_yy", "flux_pos", "flux_pos_err", "x_pos", "y_pos", "flux_neg", "flux_neg_err",
    "x_neg", "y_neg", "separation", "separation_err", "angle", "angle_err", "sharpness",
]  # fmt: skip


def measured(image, **changes):
    """Catalogue of an exposure detected with its own noise, and fitted."""
    catalog = Detect()(image, device="cpu")
    return Fit()(image=image.with_(**changes), catalog=catalog, device="cpu")


def field(rng, shape=(600, 600)):
    """x, y, flux of isolated sources of both signs, S/N 8 to 200, and an image of them."""
    x, y = lattice(rng, shape)
    flux = flux_of(np.exp(rng.uniform(np.log(8), np.log(200), len(x)))) * rng.choice([-1, 1], len(x))
    return x, y, flux, draw(rng.normal(0, 1, shape), x, y, flux)


def test_point_sources(rng, figure):
    x, y, flux, image = field(rng)
    out = measured(exposure(image))
    row, distance = nearest(out, x, y)
    own = out[row[distance < 1.5]]
    truth = [a[distance < 1.5] for a in (flux, x, y)]
    assert (own["model"] == "psf").all()
    assert (own["status"] == 0).all()
    for name, want in zip(("flux", "x", "y"), truth, strict=True):
        pull = (own[name].value - want) / own[f"{name}_err"].value
        figure(f"fit stage, pull of {name}: std", pull.std(), (0.9, 1.1))
        figure(f"fit stage, pull of {name}: |mean|", abs(pull.mean()), 0.15)
    figure("fit stage, median chi2 over dof", np.median(own["chi2"] / own["dof"]), (0.97, 1.03))
    bright = np.abs(truth[0]) > flux_of(100)
    figure("sharpness of bright stars, largest |s - 1|", np.abs(own["sharpness"][bright] - 1).max(), 0.1)
    np.testing.assert_array_equal(own.has("NEGATIVE"), own["flux"].value < 0)
    assert np.isnan(own["separation"].value).all()


def test_the_limiting_flux_is_that_of_the_fisher_information(rng, figure):
    """Five times the error of a known PSF in white noise, a third of it without pixels."""
    image = exposure(rng.normal(0, 1, (300, 300))).with_(variance=np.full((300, 300), 4, np.float32))
    image.variance[:100] = np.nan
    # sum of the squares of a well sampled Gaussian of unit sum: 1 / (4 pi sigma^2)
    figure(
        "limiting flux over its analytic value", flux_limit(image) / (5 * 2 * np.sqrt(4 * np.pi) * SIGMA), (0.99, 1.01)
    )
    assert np.isnan(flux_limit(image.with_(variance=np.full((300, 300), np.nan, np.float32))))


def test_columns_units_and_sky_positions(rng):
    _, _, _, image = field(rng, (200, 200))
    wcs = WCS(naxis=2)
    wcs.wcs.ctype = "RA---TAN", "DEC--TAN"
    wcs.wcs.crval, wcs.wcs.crpix, wcs.wcs.cdelt = (150.0, 2.0), (100, 100), (-1e-4, 1e-4)
    out = measured(exposure(image, unit=u.nJy, wcs=wcs))
    assert out.colnames == COLUMNS
    assert {str(out[n].unit) for n in ("flux", "flux_err", "background", "flux_pos")} == {"nJy"}
    assert out["moment_x"].unit == u.nJy * u.pix
    assert out["moment_xy"].unit == (u.nJy * u.pix) ** 2
    assert out["angle"].unit == u.deg
    ra, dec = wcs.all_pix2world(out["x"].value, out["y"].value, 0)
    np.testing.assert_allclose(out["ra"].value, ra, atol=1e-10)
    np.testing.assert_allclose(out["dec"].value, dec, atol=1e-10)


def test_flux_is_the_coefficient_of_the_psf_as_given(rng):
    """A whitened PSF need not sum to 1, and is not forced to."""
    x, y = lattice(rng, (200, 200))
    image = draw(rng.normal(0, 0.01, (200, 200)), x, y, np.full(len(x), 100.0))
    psf = GridPsf(0.7 * gaussian(31, 0, 0)[None, None], np.array([100.0]), np.array([100.0]))
    out = measured(exposure(image, variance=1e-4), psf=psf)
    row, _ = nearest(out, x, y)
    np.testing.assert_allclose(out["flux"].value[row], 100 / 0.7, rtol=3e-3)


def dipole_field(rng, low, high, separations, shape=(900, 900)):
    """Dipoles on a lattice, those that are detected: both lobes' places, fluxes, and the fitted rows."""
    x, y = lattice(rng, shape)
    n = len(x)
    separation, angle = rng.uniform(*separations, n) * SIGMA, rng.uniform(0, 2 * np.pi, n)
    half = 0.5 * separation * np.stack([np.cos(angle), np.sin(angle)])
    flux = flux_of(np.exp(rng.uniform(np.log(low), np.log(high), n))) * np.ones((2, 1))
    flux[rng.integers(0, 2, n), np.arange(n)] *= rng.uniform(0.6, 1, n)
    at = np.stack([np.stack([x, y]) + half, np.stack([x, y]) - half])
    image = draw(draw(rng.normal(0, 1, shape), *at[0], flux[0]), *at[1], -flux[1])
    out = measured(exposure(image))
    row, distance = nearest(out, x, y)
    seen = distance < 3 * SIGMA
    return at[:, :, seen], flux[:, seen], out[row[seen]]


def test_dipoles(rng, figure):
    at, flux, own = dipole_field(rng, 20, 200, (1, 3))
    error = np.max([
        np.hypot(own[f"x_{lobe}"].value - at[k, 0], own[f"y_{lobe}"].value - at[k, 1])
        for k, lobe in enumerate(("pos", "neg"))
    ], axis=0)  # fmt: skip
    figure("detected dipoles with both lobes within 0.5 px, S/N 20 to 200", (error < 0.5).mean(), (0.95, 1))
    figure("detected dipoles flagged", own.has("DIPOLE").mean(), (0.98, 1))
    figure("detected dipoles so modelled", (own["model"] == "dipole").mean(), (0.98, 1))
    good = (own["model"] == "dipole") & ~own.has("DEGENERATE")
    half = (at[0] - at[1])[:, good]
    moment = 2 * flux[0] * flux[1] / (flux[0] + flux[1])
    truths = {
        "flux": (flux[0] - flux[1])[good],
        "flux_pos": flux[0][good],
        "separation": np.hypot(*half),
        "angle": np.degrees(np.arctan2(half[1], half[0])),
    }
    for name, want in truths.items():
        off = own[name].value[good] - want
        pull = (off + 180) % 360 - 180 if name == "angle" else off
        pull = pull / own[f"{name}_err"].value[good]
        figure(f"dipoles, pull of {name}: robust std", 1.4826 * np.median(np.abs(pull)), (0.88, 1.12))
    for axis, k in (("x", 0), ("y", 1)):
        pull = (own[f"moment_{axis}"].value[good] - moment[good] * half[k]) / np.sqrt(
            own[f"moment_{axis * 2}"].value[good]
        )
        figure(f"dipoles, pull of moment_{axis}: robust std", 1.4826 * np.median(np.abs(pull)), (0.88, 1.12))


def test_degenerate_dipoles_are_flagged_and_only_they(rng, figure):
    at, flux, own = dipole_field(rng, 20, 250, (0.2, 2.5), (1400, 1400))
    error = np.array([fisher_error(at[:, :, k], flux[:, k]) for k in range(len(own))])
    dipole, flagged = own["model"] == "dipole", own.has("DEGENERATE")
    undetermined, sharp = dipole & (error > 0.5), dipole & (error < 0.15)
    assert undetermined.sum() > 150
    assert sharp.sum() > 300
    figure("dipoles with lobe error above 0.5 px flagged", flagged[undetermined].mean(), (0.95, 1))
    figure("dipoles with lobe error below 0.15 px flagged", flagged[sharp].mean(), 0.01)
    pull = (own["flux"].value - flux[0] + flux[1])[flagged] / own["flux_err"].value[flagged]
    figure("degenerate dipoles, pull of flux: robust std", 1.4826 * np.median(np.abs(pull)), (0.85, 1.25))


def test_weak_second_lobe_is_found_without_help(rng):
    """Detection saw one peak only; the excess of chi2 calls for two lobes."""
    image = draw(rng.normal(0, 1, (80, 80)), [40, 43.5], [40, 41], flux_of(np.array([150, -20])))
    out = measured(exposure(image))
    assert not np.isfinite(Detect()(exposure(image), device="cpu")["x_neg"][0])
    assert out["model"][0] == "dipole"
    assert np.hypot(out["x_neg"].value[0] - 43.5, out["y_neg"].value[0] - 41) < 0.5


@pytest.mark.parametrize("faint", [25, -25])
@pytest.mark.parametrize("away", [8, 10, 12])
def test_bright_neighbour_leaves_the_faint_source_alone(rng, figure, faint, away):
    """At S/N 200 its light would halve the flux of a source of S/N 25, or move it."""
    x, y = lattice(rng, (400, 400), 50)
    image = rng.normal(0, 1, (400, 400))
    draw(image, x, y, flux_of(200 + 0 * x))
    draw(image, x + away, y + 0.3, flux_of(faint + 0 * x))
    out = measured(exposure(image))
    row, distance = nearest(out, x + away, y + 0.3)
    seen = distance < 1.5
    assert seen.sum() > 0.3 * len(x)
    pull = (out["flux"].value[row] - flux_of(faint))[seen] / out["flux_err"].value[row[seen]]
    figure(f"pull of flux beside a bright source, {away} px, {faint}: |median|", abs(np.median(pull)), 0.6)
    figure(f"pull of flux beside a bright source, {away} px, {faint}: std", pull.std(), 1.4)


def test_blend_of_one_sign_is_no_dipole(rng):
    image = draw(rng.normal(0, 1, (80, 80)), [40, 42.5], [40, 40], flux_of(np.array([100, 80])))
    assert (measured(exposure(image))["model"] == "psf").all()


def test_negative_image_gives_the_same_numbers(rng):
    _, _, _, image = field(rng, (300, 300))
    draw(image, [100.0, 104.0], [215.0, 213.0], flux_of(np.array([40, -50])))
    there, back = measured(exposure(image)), measured(exposure(-image))
    assert (there["model"] == "dipole").any()
    np.testing.assert_array_equal(there["model"], back["model"])
    for name in ("x", "y", "flux_err", "chi2", "separation", "sharpness"):
        np.testing.assert_allclose(np.asarray(there[name]), np.asarray(back[name]), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(there["flux"].value, -back["flux"].value, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(there["flux_pos"].value, back["flux_neg"].value, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("pixels", [[(0, 0)], [(0, 0), (1, 0), (2, 0)], [(0, 0), (1, 1)]], ids=["hot", "track", "two"])
def test_hot_pixels_and_cosmic_rays_are_sharp_and_no_dipoles(rng, figure, pixels):
    x, y, _, sources = field(rng)
    rays = rng.normal(0, 1, sources.shape)
    light = flux_of(np.exp(rng.uniform(np.log(12), np.log(100), len(x))))
    for dy, dx in pixels:
        rays[np.rint(y).astype(int) + dy, np.rint(x).astype(int) + dx] += 0.5 * light / np.sqrt(len(pixels))
    real, false = measured(exposure(sources)), measured(exposure(rays))
    limit = np.nanpercentile(real["sharpness"], 98)
    figure(
        f"share of {len(pixels)} px rays sharper than 98 % of sources", (false["sharpness"] > limit).mean(), (0.95, 1)
    )
    figure(f"share of {len(pixels)} px rays called dipole", (false["model"] == "dipole").mean(), 0.02)


def test_masked_rows_edges_and_nothing_usable(rng):
    image = draw(rng.normal(0, 1, (80, 200)), [2.0, 60.0, 120.0], [40.0] * 3, flux_of(np.full(3, 50.0)))
    planes = MaskPlanes()
    mask = np.zeros(image.shape, np.int32)
    catalog = Detect()(exposure(image), device="cpu")
    mask[20:60, 40:80] = planes.bit("CR")
    mask[38:41, 121] = planes.bit("BAD")
    image[38:41, 121] = np.nan
    out = Fit()(image=exposure(image, mask=mask, planes=planes), catalog=catalog, device="cpu")
    row, _ = nearest(catalog, [2, 60, 120], [40, 40, 40])
    edge, lost, holed = (out[k] for k in row)
    assert [edge["model"], lost["model"], holed["model"]] == ["psf", "none", "psf"]
    assert edge["flux"].value == pytest.approx(flux_of(50), rel=0.15)
    assert holed["flux"].value == pytest.approx(flux_of(50), rel=0.15)
    assert out.has("NO_FIT").tolist().count(True) == 1
    assert np.isnan(lost["flux"])
    assert lost["x"] == catalog["x"][row[1]]


def test_empty_catalogue_keeps_every_column():
    image = exposure(np.zeros((60, 60)))
    empty = Detect()(image, device="cpu")
    assert Fit()(image=image, catalog=empty, device="cpu").colnames == COLUMNS


def test_rows_do_not_depend_on_their_company(rng):
    _, _, _, image = field(rng, (300, 300))
    image = exposure(image)
    catalog = Detect()(image, device="cpu")
    whole = Fit()(image=image, catalog=catalog, device="cpu")
    many = Catalog(np.tile(np.asarray(catalog.as_array()), BATCH // len(catalog) + 2), units={"x": u.pix, "y": u.pix})
    repeated = Fit()(image=image, catalog=many, device="cpu")
    for name in whole.colnames:
        got = np.asarray(repeated[name]).reshape(-1, len(whole))
        for block in got:
            np.testing.assert_array_equal(block, np.asarray(whole[name]))


def test_counts_are_recorded(rng):
    _, _, _, image = field(rng, (200, 200))
    ctx = Context(resolve("cpu"))
    e = exposure(image)
    Fit().execute(ctx, {"image": e, "catalog": Detect()(e, device="cpu")})
    assert set(ctx.metrics) >= {"candidates", "dipoles", "not_converged"}


def test_what_is_missing_is_named():
    image = np.zeros((30, 30), np.float32)
    catalog = Detect()(exposure(image), device="cpu")
    with pytest.raises(InputError, match="no variance"):
        Fit()(image=Exposure(image), catalog=catalog, device="cpu")
    with pytest.raises(InputError, match="no PSF"):
        Fit()(image=Exposure(image, image + 1), catalog=catalog, device="cpu")
