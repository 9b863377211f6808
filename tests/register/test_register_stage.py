# SPDX-License-Identifier: BSD-3-Clause
"""Images with known truth: a WCS where there was none or a wrong one, then ``align``."""

import functools
import itertools

import numpy as np
import pytest
import support_align
import support_stars
from astropy import units as u
from astropy.coordinates import SkyCoord
from astropy.io import fits
from astropy.table import Table
from astropy.time import Time
from click.testing import CliRunner
from scipy import ndimage

import skydelta
from skydelta.errors import AlgorithmError, ConfigError, InputError
from skydelta.io.exposure import Exposure
from skydelta.io.wcs import wcs_cards
from skydelta.kernels.backend import CPU
from skydelta.pipeline.cli import cli
from skydelta.stages.base import Context
from skydelta.stages.register import Register
from skydelta.stages.register.lists import register_lists
from skydelta.stages.register.phase import phase_shift
from skydelta.stages.register.planemap import frame_grid
from skydelta.stages.register.sources import image_stars, moved, read_catalog, sky_stars

SHAPE = (520, 560)
SKY = (37.3, -11.0)


@functools.cache
def catalogue():
    rng = np.random.default_rng(4)
    n = 420
    flux = 10 ** rng.uniform(3.5, 5.2, n)
    ra, dec = SKY[0] + rng.uniform(-0.035, 0.035, n), SKY[1] + rng.uniform(-0.035, 0.035, n)
    return ra, dec, flux


def observed(wcs, seed, sky=300.0, fwhm=2.8):
    """A raw frame of the catalogue: sky, photon noise, read noise."""
    ra, dec, flux = catalogue()
    x, y = wcs.all_world2pix(ra, dec, 0, quiet=True)
    inside = (x > -5) & (y > -5) & (x < SHAPE[1] + 5) & (y < SHAPE[0] + 5)
    model = np.zeros(SHAPE)
    support_stars.draw(model, x[inside], y[inside], flux[inside], fwhm, beta=None)
    exposure = support_stars.observe(np.random.default_rng(seed), model, sky)
    return exposure.with_(image=exposure.image + np.float32(sky), wcs=wcs)


@functools.cache
def frames():
    """Two raw frames of one field: a tangent plane; turned by a degree, moved and bent by 3 px."""
    plane = support_align.plane(SHAPE)
    bent = support_align.with_sip(support_align.plane(SHAPE, turn=1.0, shift=(30, -20)))
    return observed(plane, 1), observed(bent, 2)


def moved_wcs(exposure, pixels):
    wcs = exposure.wcs.deepcopy()
    wcs.wcs.crpix += pixels
    if wcs.sip is not None:
        wcs.sip.crpix[:] = wcs.wcs.crpix
    wcs.wcs.set()
    return exposure.with_(wcs=wcs)


def run(image, onto=None, catalog=None, **settings):
    ctx = Context(CPU, id="test")
    given = {"image": image, "onto": onto, "catalog": catalog}
    return Register(**settings).execute(ctx, {k: v for k, v in given.items() if v is not None}), ctx


def errors(found, truth, onto):
    """Distances (px) between a WCS and the truth at positions of the frame that ``onto`` sees as well."""
    grid = frame_grid(np.array([[10.0, SHAPE[1] - 10], [10.0, SHAPE[0] - 10]]), 20)
    sky = truth.all_pix2world(*grid, 0)
    there = onto.all_world2pix(*sky, 0, quiet=True)
    seen = (there[0] > 5) & (there[0] < SHAPE[1] - 5) & (there[1] > 5) & (there[1] < SHAPE[0] - 5)
    got = found.all_world2pix(*sky, 0, quiet=True)
    return np.hypot(*(np.array(got) - grid))[seen]


def test_an_image_without_wcs_gets_one(figure):
    plane, bent = frames()
    out, ctx = run(bent.with_(wcs=None), plane)
    error = errors(out["registered"].wcs, bent.wcs, plane.wcs)
    figure("no WCS, TAN-SIP field: median error, px", np.median(error), 0.01)
    figure("no WCS, TAN-SIP field: largest error, px", error.max(), 0.1)
    assert ctx.metrics["matched"] > 80
    assert out["registered"].notes["register"]["rms_px"] == ctx.metrics["rms_px"]
    assert np.array_equal(out["registered"].image, bent.image)
    wcs_cards(out["registered"].wcs)
    aligned = skydelta.align(out["registered"], onto=plane)
    z = (aligned.image - plane.image) / np.sqrt(aligned.variance + plane.variance)
    spread = 1.4826 * np.nanmedian(np.abs(z - np.nanmedian(z)))
    figure("aligned after registration: spread of the difference, sigma", spread, (0.9, 1.2))


@pytest.mark.parametrize("change", ["shifted", "turned and mirrored"])
def test_a_wrong_wcs_is_mended(change, figure):
    plane, bent = frames()
    wrong = (
        moved_wcs(bent, 5.0) if change == "shifted" else bent.with_(wcs=support_align.plane(SHAPE, 20, mirrored=True))
    )
    before = errors(wrong.wcs, bent.wcs, plane.wcs)
    out, ctx = run(wrong, plane)
    error = errors(out["registered"].wcs, bent.wcs, plane.wcs)
    assert np.median(before) > 5
    figure(f"{change} WCS mended: median error, px", np.median(error), 0.01)
    if change == "shifted":  # its distortion, of order 3, is known and kept
        assert ctx.metrics["from_wcs"]
        assert ctx.metrics["order"] <= 2


def test_without_any_wcs_both_get_a_made_up_plane():
    plane, bent = frames()
    out, ctx = run(bent.with_(wcs=None), plane.with_(wcs=None))
    assert "made up" in out["registered"].notes["register"]["plane"]
    assert "made up" in out["onto"].notes["register"]["plane"]
    assert out["registered"].wcs.wcs.name == out["onto"].wcs.wcs.name == "PIXEL PLANE"
    assert "made_up_plane" in ctx.flags
    aligned = skydelta.align(out["registered"], onto=out["onto"])
    direct = skydelta.align(bent, onto=plane)
    both = np.isfinite(aligned.image) & np.isfinite(direct.image)
    assert both.mean() > 0.85
    noise = np.sqrt(plane.variance)
    assert np.quantile(np.abs(aligned.image - direct.image)[both] / noise[both], 0.99) < 0.5


@pytest.mark.parametrize("known", [True, False])
def test_a_catalogue_gives_the_wcs(known, figure):
    _, bent = frames()
    ra, dec, flux = catalogue()
    table = Table({"ra": ra, "dec": dec, "mag": -2.5 * np.log10(flux)})
    image = moved_wcs(bent, 5.0) if known else bent.with_(wcs=None)
    out, ctx = run(image, catalog=table)
    error = errors(out["registered"].wcs, bent.wcs, bent.wcs)
    figure(f"catalogue, WCS {'5 px off' if known else 'unknown'}: median error, px", np.median(error), 0.01)
    assert ctx.metrics["stars_onto"] == len(table) or known


def test_proper_motions_are_those_of_astropy(rng):
    n = 40
    ra, dec = rng.uniform(0, 360, n), np.append(rng.uniform(-80, 80, n - 1), 89.99)
    pmra, pmdec = rng.normal(0, 2000, (2, n))
    table = Table({"ra": ra, "dec": dec, "pmra": pmra, "pmdec": pmdec}, meta={"ref_epoch": 2016.0})
    got, warning = sky_stars(table, 2036.0)
    assert not warning
    start = SkyCoord(ra * u.deg, dec * u.deg, pm_ra_cosdec=pmra * u.mas / u.yr, pm_dec=pmdec * u.mas / u.yr,
                     obstime=Time(2016.0, format="jyear"))  # fmt: skip
    want = start.apply_space_motion(new_obstime=Time(2036.0, format="jyear"))
    assert SkyCoord(got.ra * u.deg, got.dec * u.deg).separation(want).mas.max() < 0.5
    assert np.abs(moved(ra, dec, np.zeros(n), np.zeros(n))[1] - dec).max() < 1e-9


def test_a_catalogue_says_what_it_lacks(tmp_path):
    with pytest.raises(InputError, match="no column dec; it has ra, x"):
        sky_stars(Table({"ra": [1.0], "x": [2.0]}), 2000.0)
    motion = Table({"ra": [1.0], "dec": [2.0], "pmra": [1.0], "pmdec": [1.0]})
    with pytest.raises(InputError, match="no ref_epoch"):
        sky_stars(motion, 2000.0)
    assert "no date" in sky_stars(motion, None)[1]
    with pytest.raises(InputError, match="no such file"):
        read_catalog(tmp_path / "none.ecsv")
    for suffix, form in (("ecsv", "ascii.ecsv"), ("vot", "votable"), ("parquet", "parquet")):
        path = tmp_path / f"stars.{suffix}"
        Table({"ra": [1.0, 3.0], "dec": [2.0, 4.0]}).write(path, format=form)
        assert list(sky_stars(read_catalog(path), None)[0].dec) == [2.0, 4.0]


def test_centroids_of_raw_frames(rng, figure):
    """S/N 100 in the image, sky not subtracted; a saturated star and a patch without data do not matter."""
    n, fwhm = 100, 3.0
    x, y = support_stars.spread_positions(rng, SHAPE, n, 25)
    model = np.zeros(SHAPE)
    support_stars.draw(model, x, y, np.full(n, 2.4e4), fwhm, beta=None)
    exposure = support_stars.observe(rng, model, 400.0)
    image, mask = exposure.image + np.float32(400), exposure.mask.copy()
    image[200:230, 200:230] = np.nan
    full = np.hypot(*(np.indices(SHAPE) - np.rint([y[0], x[0]])[:, None, None])) < 4
    image[full], mask[full] = 6e4, exposure.planes.bit("SAT")
    found = image_stars(exposure.with_(image=image, mask=mask), CPU)
    gap, index = support_stars.nearest(found, x, y)
    near = gap < 1
    assert near.sum() >= n - 4
    assert not near[0]
    dx = np.concatenate([found.x[index[near]] - x[near], found.y[index[near]] - y[near]])
    figure("centroids at S/N 100, raw frame, px", np.sqrt((dx**2).mean()), 0.02)
    assert 0.5 < np.sqrt((dx**2).mean()) / np.median(found.error) < 2


def test_patches_without_data_do_not_matter():
    plane, bent = frames()
    image = bent.image.copy()
    image[100:220, 150:300] = np.nan
    image[:, 400:403] = np.nan
    out, _ = run(bent.with_(image=image, wcs=None), plane)
    assert np.median(errors(out["registered"].wcs, bent.wcs, plane.wcs)) < 0.015


@pytest.mark.parametrize("number", [0, 1, 2, 5])
def test_too_few_stars_in_images_fail_with_numbers(number):
    rng = np.random.default_rng(number)
    model = np.zeros(SHAPE)
    x, y = support_stars.spread_positions(rng, SHAPE, max(number, 1), 60)
    support_stars.draw(model, x[:number], y[:number], np.full(number, 3e4), 3.0, beta=None)
    other = support_stars.observe(rng, ndimage.shift(model, (40, -25), order=1))
    try:
        out, _ = run(support_stars.observe(rng, model), other)
    except AlgorithmError as e:
        assert e.numbers["stars_image"] == number
        assert e.numbers["matched"] == 0
    else:  # a shift may come from the light of few, if it is right
        shift = np.array(out["onto"].wcs.all_world2pix(*out["registered"].wcs.all_pix2world(250, 250, 0), 0)) - 250
        np.testing.assert_allclose(shift, (-25, 40), atol=0.6)


def cloud(rng, shape, scale=4.0):
    """A smooth random field: light without stars."""
    return 40 * scale * ndimage.gaussian_filter(rng.normal(0, 1, shape), scale, mode="wrap")


def test_phase_correlation_where_there_are_no_stars(rng, figure):
    light = cloud(rng, (400, 420))
    phase = np.exp(-2j * np.pi * (np.fft.fftfreq(400)[:, None] * 7.3 + np.fft.fftfreq(420) * -12.6))
    shifted = np.fft.ifft2(np.fft.fft2(light) * phase).real
    a, b = (
        Exposure((p[50:350, 50:350] + rng.normal(0, 5, (300, 300)) + 100).astype(np.float32)) for p in (light, shifted)
    )
    found = phase_shift(a, b)
    figure("phase correlation: error, px", np.hypot(found.x + 12.6, found.y - 7.3), 0.1)
    out, ctx = run(a, b, method="phase")
    assert ctx.metrics["method"] == "phase"
    assert out["onto"].wcs.wcs.name == "PIXEL PLANE"


def test_phase_correlation_of_noise_is_refused(rng):
    for seed in range(5):
        g = np.random.default_rng(seed)
        pair = [Exposure((g.normal(0, 5, (256, 256)) + k * cloud(g, (256, 256))).astype(np.float32)) for k in (0, 1)]
        for a, b in (pair, (pair[1], Exposure((cloud(g, (256, 256))).astype(np.float32)))):
            with pytest.raises(AlgorithmError) as e:
                phase_shift(a, b)
            assert e.value.numbers["significance"] >= 0


def test_real_crowded_frames_without_wcs(shared_data, figure):
    paths = sorted((shared_data / "pairs" / "saao_bulge").glob("*.fits"))
    lists = [image_stars(skydelta.read(p, device="cpu"), CPU) for p in paths]
    found = {(i, j): register_lists(lists[i], lists[j]) for i, j in itertools.permutations(range(len(lists)), 2)}
    rms = []
    for (i, j), s in found.items():
        off = s.map(lists[i].at[:, s.a]) - lists[j].at[:, s.b]
        rms.append(np.sqrt((off**2).sum(axis=0).mean()))
        assert s.pairs > 100
    figure("SAAO frames, all pairs: largest rms, px", max(rms), 0.15)
    grid = frame_grid(np.array([[20.0, 490.0], [20.0, 490.0]]))
    closure = []
    for i, j, k in itertools.permutations(range(len(lists)), 3):
        there = found[k, i].map(found[j, k].map(found[i, j].map(grid)))
        closure.append(np.sqrt(((there - grid) ** 2).sum(axis=0).mean()))
    figure("SAAO frames, all cycles of three: largest closure, px", max(closure), 0.1)


def test_settings_and_inputs_that_make_no_sense():
    _, bent = frames()
    with pytest.raises(ConfigError, match="either onto"):
        run(bent)
    with pytest.raises(ConfigError, match="order"):
        Register(order=6)
    with pytest.raises(ConfigError, match="phase needs an image"):
        run(bent, catalog=Table({"ra": [1.0], "dec": [1.0]}), method="phase")
    far = Table({"ra": np.linspace(200, 201, 50), "dec": np.linspace(40, 41, 50)})
    with pytest.raises(InputError, match="0 of 50 stars of the catalogue lie near"):
        run(bent, catalog=far)


def test_the_command_writes_an_image_or_says_why_not(tmp_path):
    plane, bent = frames()
    skydelta.write(plane, tmp_path / "onto.fits")
    skydelta.write(moved_wcs(bent, 5.0), tmp_path / "image.fits")
    flat = np.random.default_rng(1).normal(100, 5, (200, 200)).astype(np.float32)
    fits.PrimaryHDU(flat).writeto(tmp_path / "blank.fits")
    call = functools.partial(CliRunner().invoke, cli)
    image, onto, blank, out = (str(tmp_path / f"{n}.fits") for n in ("image", "onto", "blank", "out"))
    done = call(["register", image, "--onto", onto, "-o", out])
    assert done.exit_code == 0, done.output
    assert "matched" in done.output
    assert np.median(errors(skydelta.read(out).wcs, bent.wcs, plane.wcs)) < 0.01
    failed = call(["register", blank, "--onto", onto, "-o", str(tmp_path / "no.fits")])
    assert failed.exit_code == 4
    assert "stars_image" in failed.output
    assert not (tmp_path / "no.fits").exists()
    assert call(["register", image, "--onto", onto, "-o", out]).exit_code == 2  # it is there
    new = str(tmp_path / "new.fits")
    assert call(["register", image, "--onto", blank, "-o", new]).exit_code == 2  # no WCS, and no --onto-out
    assert call(["register", image, "--onto", str(tmp_path / "none.ecsv"), "-o", new]).exit_code == 3
