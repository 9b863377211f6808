# SPDX-License-Identifier: BSD-3-Clause
"""The proper difference: against its formulas, against Monte Carlo, and where pixels are bad or shifted."""

import numpy as np
import pytest
import support_standin
from scipy.ndimage import binary_dilation
from support_pairs import context, gaussian, pair
from support_scoring import robust_std

from skydelta.kernels.backend import CPU, resolve, to_host
from skydelta.kernels.core.devices import DeviceSet
from skydelta.kernels.core.tiles import TileGrid
from skydelta.kernels.zogy import CORE, OUTPUTS, TileValues, proper_image
from skydelta.stages.difference import Difference
from skydelta.stages.match import Match
from skydelta.stages.recover import forced_fluxes


def subtract(p, ctx=None, **settings):
    inputs = {"science": p.science, "reference": p.reference}
    kernel = Match(order=1).execute(context(), inputs)["kernel"]
    return Difference(method="zogy", **settings).execute(ctx or context(), {**inputs, "kernel": kernel})


def blank(p, made, margin=14):
    out = np.isfinite(made["difference"].image)
    j, i = np.indices(out.shape)
    for x, y in zip(p.x, p.y, strict=True):
        out &= np.hypot(i - x, j - y) > margin
    return out


def inputs(rng, shape=(150, 180)):
    n, r = (rng.normal(0, s, shape) for s in (3.0, 2.0))
    variances = [v + rng.random(shape) for v in (9.0, 4.0)]
    bad = np.zeros(shape)
    return tuple(a.astype(np.float32) for a in (n, r, *variances, bad, bad, bad, bad))


def values(tiles, correlation=None, shift=0.07):
    one = np.ones(tiles)
    stamps = (np.repeat(gaussian(s, 10)[None], tiles, axis=0) for s in (1.7, 1.2))
    return TileValues(*stamps, 1.25 * one, 9.0 * one, 4.0 * one, None, correlation, shift)


def test_the_planes_are_those_of_the_formulas(rng):
    """One whole transform in double precision, away from the edges, where the tiles see nothing else either."""
    shape = (150, 180)
    planes = inputs(rng, shape)
    lag = np.arange(-4, 5)
    rho = np.exp(-(lag[:, None] ** 2 + lag**2) / 1.5)
    grid = TileGrid(shape, 80, 40)
    made, psfs = proper_image(planes, values(len(grid), rho), grid, 10)

    def spectrum(stamp):
        full = np.zeros(shape)
        h, w = stamp.shape
        full[:h, :w] = stamp
        return np.fft.fft2(np.roll(full, (-(h // 2), -(w // 2)), (0, 1)))

    def back(a):
        return np.fft.ifft2(a).real

    pn, pr = (spectrum(gaussian(s, 10)) for s in (1.7, 1.2))
    power = np.maximum(spectrum(rho).real, 1e-2 * spectrum(rho).real.max())
    qn, qr, f = pn + CORE, pr + CORE, 1.25
    den = 9 * f**2 * np.abs(qr) ** 2 + 4 * power * np.abs(qn) ** 2
    norm = f * qr[0, 0].real / np.sqrt(den[0, 0])
    dn, dr = f * qr / np.sqrt(den) / norm, qn / np.sqrt(den) / norm
    new, reference, v_new, v_reference = (np.fft.fft2(a.astype(float)) for a in planes[:4])

    def chain(a, p=1):
        return np.fft.fft2(back(a) * back(a * p))

    difference = back(dn * new - dr * reference)
    variance = back(chain(dn) * v_new + chain(dr, power) * v_reference)
    matched = np.conj(dn * pn)
    own = back(matched * dn * new)
    slope = [(np.roll(own, -1, k) - np.roll(own, 1, k)) / 2 for k in (0, 1)]
    spread = back(chain(matched * dn) * v_new + chain(matched * dr, power) * v_reference)
    spread += 0.07**2 * (slope[0] ** 2 + slope[1] ** 2)
    score = (own - back(matched * dr * reference)) / np.sqrt(spread)
    inner = np.s_[45:-45, 45:-45]
    for name, want in (("difference", difference), ("variance", variance), ("score", score)):
        got = made[OUTPUTS.index(name)]
        np.testing.assert_allclose(got[inner], want[inner], atol=2e-3 * want[inner].std() + 1e-4, err_msg=name)
    stamp = np.roll(back(dn * pn), (10, 10), (0, 1))[:21, :21]
    np.testing.assert_allclose(psfs[0], stamp, atol=1e-5)


def test_the_same_bytes_with_any_number_of_devices(rng):
    planes, grid = inputs(rng), TileGrid((150, 180), 50, 40)
    one, many = (proper_image(planes, values(len(grid)), grid, 10, DeviceSet.of(CPU, n))[0] for n in (1, 3))
    assert one.tobytes() == many.tobytes()


@pytest.mark.parametrize(("widths", "ratio"), [((1.7, 1.25), 0.8), ((1.25, 1.7), 3.0), ((1.5, 1.5), 0.2)])
def test_noise_is_white_and_the_score_has_unit_variance(widths, ratio, figure):
    p = pair(seed=91, shape=(384, 384), widths=widths, ratio=ratio, stars=60, low=2e4 / min(ratio, 1), high=1e5)
    made = subtract(p, registration_error=0.0)
    use, d = blank(p, made), made["difference"]
    z = np.where(use, d.image / np.sqrt(d.variance), 0)
    figure(f"zogy: std of D / sigma, widths {widths}, ratio {ratio}", abs(z[use].std() - 1), 0.02)
    figure(f"zogy: score std, widths {widths}, ratio {ratio}", abs(robust_std(made["score"].image[use]) - 1), 0.04)
    for dy, dx in ((0, 1), (1, 0), (1, 1)):
        both = use[: 384 - dy, : 384 - dx] & use[dy:, dx:]
        assert abs((z[: 384 - dy, : 384 - dx] * z[dy:, dx:])[both].mean()) < 0.02


def test_fluxes_are_in_science_units_with_their_own_errors(figure):
    rng = np.random.default_rng(92)
    at = [(60 + 80 * a + rng.random(), 60 + 80 * b + rng.random()) for a in range(4) for b in range(4)]
    transients = [(x, y, 6000.0) for x, y in at]
    made = subtract(pair(seed=92, shape=(384, 384), stars=60, low=8000, transients=transients), registration_error=0.0)
    x, y = np.array(at).T
    flux, error = forced_fluxes(made["whitened"], x, y)
    keep = np.isfinite(flux)
    assert keep.sum() >= 14
    pull = (flux - 6000)[keep] / error[keep]
    figure("zogy: flux ratio of transients", abs(flux[keep].mean() / 6000 - 1), 0.02)
    assert 0.5 < pull.std() < 1.7


def test_the_astrometric_term_keeps_shifted_stars_quiet():
    p = pair(seed=93, shape=(320, 320), stars=60, low=1e4, high=1e5, offset=(0.2, 0.1))
    count = {}
    for error in (0.0, 0.25):
        score = subtract(p, registration_error=error)["score"].image
        count[error] = int((np.abs(score) > 5).sum())
    assert count[0.0] > 20
    assert count[0.25] < count[0.0] / 10


def test_bad_pixels_of_both_images_are_blanked_and_named():
    p = pair(seed=94, shape=(300, 300))
    p.science.image[100, 100] = np.nan
    p.reference.image[200, 150] = np.nan
    p.reference.mask[60:63, 200:203] = p.reference.planes.bit("SAT")
    made = subtract(p)
    d = made["difference"]
    lost = np.isnan(d.image)
    assert lost[100, 100]
    assert lost[200, 150]
    inner = lost[20:-20, 20:-20]
    assert 3 < inner.sum() < 400
    assert ((d.mask[lost] & d.planes.invalid) != 0).all()
    assert ((d.mask[60:63, 200:203] & d.planes.bit("SAT_TEMPLATE")) != 0).all()
    assert (np.isnan(made["score"].image) == lost).all()
    near = binary_dilation(lost, iterations=3) & ~lost
    assert np.abs(made["score"].image[near]).max() < 6


def test_the_method_keeps_host_and_device_apart(monkeypatch):
    p = pair(seed=95, shape=(300, 280))
    both = {"science": p.science, "reference": p.reference}
    kernel = Match(order=1).execute(context(), both)["kernel"]
    want = Difference(method="zogy").execute(context(), {**both, "kernel": kernel})
    copies = support_standin.install(monkeypatch)
    device = resolve("cuda")
    ctx = context()
    ctx.backend = device
    there = {name: e.to(device) for name, e in both.items()}
    copies.clear()
    made = Difference(method="zogy").execute(ctx, {**there, "kernel": kernel})
    assert max(copies["up largest"], copies["down largest"]) < 4 * 300 * 280
    image = to_host(made["score"].image)
    monkeypatch.undo()
    np.testing.assert_allclose(np.asarray(image), want["score"].image, atol=5e-3)


@pytest.mark.parametrize(("shape", "said"), [((110, 120), True), ((420, 400), False)])
def test_a_field_that_is_mostly_margin_is_said(shape, said):
    ctx = context()
    subtract(pair(seed=49, shape=shape, stars=max(20, shape[0] * shape[1] // 1200)), ctx)
    assert ("field_lost" in ctx.flags) == said
