# SPDX-License-Identifier: BSD-3-Clause
"""Free pixels as the basis: against brute force, against known kernels that no Gaussians make, and the choice."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import support_standin
from astropy.io import fits
from scipy.ndimage import laplace
from scipy.signal import fftconvolve
from scipy.stats import wilcoxon
from support_pairs import context, gaussian, pair, stars_image, subtract

from skydelta.errors import ConfigError
from skydelta.io.exposure import Exposure
from skydelta.io.field import polynomial_terms
from skydelta.io.matchkernel import MatchKernel
from skydelta.io.psf import PixelPsf
from skydelta.kernels.backend import resolve
from skydelta.kernels.normal_equations import System, stamp_sums
from skydelta.stages.base import Context
from skydelta.stages.difference import Difference
from skydelta.stages.match import Match
from skydelta.stages.match.choice import choose, signed_rank_chance
from skydelta.stages.match.delta import LARGEST, PLACES, STRENGTHS, DeltaBasis, chosen_strength, most_bytes, penalty
from skydelta.stages.match.fit import layout
from skydelta.stages.match.stamps import most_stamps, select
from skydelta.stages.stars import find_stars


def spikes(half=7, total=0.8):
    """Three narrow peaks off the middle, none as bright as another, as of a mount that jumped."""
    j, i = np.mgrid[-half : half + 1, -half : half + 1].astype(float)
    peaks = ((2.6, 0.4, 0.42), (-2.4, 1.8, 0.33), (-0.8, -2.9, 0.25))
    k = sum(w * np.exp(-((i - x) ** 2 + (j - y) ** 2) / (2 * 0.6**2)) for x, y, w in peaks)
    return total * k / k.sum()


def spiked_pair(seed, shape=(360, 360), stars=220, low=4000.0, high=2e5, sky=(400.0, 100.0), scale=1.0, kernel=None):
    """Gaussian stars, and the same convolved with a kernel: images with noise, variances and true PSFs."""
    rng = np.random.default_rng(seed)
    kernel = spikes() if kernel is None else kernel
    x, y = (rng.uniform(12, n - 13, stars) for n in shape[::-1])
    light = stars_image(shape, x, y, low * (high / low) ** rng.uniform(0, 1, stars), 1.2)
    psf = gaussian(1.2)
    out = []
    for image, level, own in zip((fftconvolve(light, kernel, "same"), light), sky,
                                 (fftconvolve(psf, kernel / kernel.sum(), "same"), psf), strict=True):  # fmt: skip
        variance = level + np.maximum(image, 0)
        data = (image + rng.normal(0, 1, shape) * np.sqrt(variance)) * scale
        planes = data.astype(np.float32), (variance * scale**2).astype(np.float32), np.zeros(shape, np.int32)
        out.append(Exposure(*planes, psf=PixelPsf.constant(own, shape)))
    return SimpleNamespace(science=out[0], reference=out[1])


def test_planes_are_convolutions_with_the_images(rng):
    basis = DeltaBasis(3)
    stamps = rng.normal(0, 1, (3, 15, 15)).astype(np.float32)
    assert basis.size == 37
    want = [[fftconvolve(s.astype(float), b, "valid") for b in basis.images()] for s in stamps]
    np.testing.assert_allclose(basis.planes(stamps), np.reshape(want, (3, 37, 81)), atol=1e-12)
    sums = basis.images().sum(axis=(1, 2))
    assert sums[0] == 1
    assert not sums[1:].any()


def test_roughness_is_the_squared_laplacian_of_what_is_not_plain(rng):
    basis = DeltaBasis(4)
    a = rng.normal(0, 1, basis.size)
    kernel = np.tensordot(a, basis.images(), 1)
    inside = np.abs(basis.images()).max(axis=0) > 0

    def curved(k):
        return laplace(np.pad(k, 3), mode="constant").ravel()

    for side in (5, 9, 13):
        plain = rng.normal(0, 1, (6, side, side))
        framed = np.pad(plain, [(0, 0), (5, 5), (5, 5)])
        middle = framed.shape[1] // 2
        shown = framed[:, middle - 4 : middle + 5, middle - 4 : middle + 5] * inside
        rows = np.array([curved(k) for k in shown]).T
        # the least that is left after taking off any combination of the plain kernels
        best, *_ = np.linalg.lstsq(rows, curved(kernel), rcond=None)
        left = curved(kernel) - rows @ best
        rough = basis.roughness(plain)
        assert a @ rough @ a == pytest.approx((left**2).sum(), rel=1e-10)
        pixels = shown[0].ravel() @ np.linalg.pinv(basis.images().reshape(basis.size, -1))
        assert abs(pixels @ rough @ pixels) < 1e-10 * (curved(shown[0]) ** 2).sum()


SPIKED = {"kernel_half": 8, "max_shift": 3.0}
"""Settings: the peaks of a star are off its middle."""


def matched(p, ctx=None, **match):
    inputs = {"science": p.science, "reference": p.reference}
    return Match(**SPIKED, **match).execute(ctx or context(), inputs)["kernel"]


PLAIN = np.array([gaussian(0.8, 2), np.outer(np.arange(-2, 3), np.ones(5))])


def random_system(rng, n=14, m=9, half=2, order=1):
    basis = DeltaBasis(half)
    stamps = rng.normal(0, 1, (n, m + 2 * half, m + 2 * half)).astype(np.float32)
    target, weight = rng.normal(0, 1, (n, m, m)).astype(np.float32), rng.uniform(0.5, 2, (n, m, m)).astype(np.float32)
    u, v = rng.uniform(-1, 1, (2, n, m))
    nothing = np.zeros((n, m, m), np.float32)
    sums = stamp_sums(stamps, target, weight, nothing, np.eye(basis.size), (u, v), 0, basis)
    phi = polynomial_terms(*rng.uniform(-1, 1, (2, n)), order).T
    system = System(sums, phi, layout(basis.size, 1, order, False), penalty(basis, PLAIN, 1, order))
    return basis, stamps, target, weight, phi, system


def test_the_penalised_solution_is_that_of_least_squares_with_rows_for_the_roughness(rng):
    basis, stamps, target, weight, phi, system = random_system(rng)
    free = system.layout
    strength, use = 0.3, rng.random(14) < 0.8
    solution = system.penalised(strength).solve(use)
    rows, right = [], []
    for s in np.flatnonzero(use):
        planes = np.array(
            [fftconvolve(stamps[s].astype(float), b, "valid") for b in basis.images()] + [np.ones((9, 9))]
        )
        design = planes[:, None] * phi[s][None, :, None, None]
        w = np.sqrt(weight[s].astype(float))
        rows.append((design[free.free] * w).reshape(free.size, -1).T)
        right.append((target[s] * w).ravel())
    trace = (np.concatenate(rows)[:, :-1] ** 2).sum()
    # the kernel's Laplacian at every place, less what is plain; the background is free
    inside = np.abs(basis.images()).max(axis=0) > 0
    plain, curved = (
        np.array([laplace(np.pad(b, 2), mode="constant").ravel() for b in images])
        for images in (PLAIN * inside, basis.images())
    )
    curved -= (curved @ np.linalg.pinv(plain)) @ plain  # less what the plain kernels can do
    curved = np.concatenate([curved, np.zeros((1, 81))])
    at = (np.arange(PLACES) + 0.5) / PLACES * 2 - 1
    rough = []
    for u in at:
        for v in at:
            terms = polynomial_terms(np.array([u]), np.array([v]), 1)[:, 0]
            rough.append((curved[:, None] * terms[None, :, None])[free.free].T)
    rough = np.concatenate(rough)
    rough *= np.sqrt(strength * trace / (rough**2).sum())
    design = np.concatenate([*rows, rough])
    want, *_ = np.linalg.lstsq(design, np.concatenate([*right, np.zeros(len(rough))]), rcond=None)
    np.testing.assert_allclose(solution.parameters, want, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(solution.covariance, np.linalg.inv(design.T @ design), rtol=1e-6, atol=1e-14)


def test_a_kernel_that_no_gaussians_make_is_recovered_without_noise(figure):
    p = spiked_pair(70, sky=(1e-2, 1e-2), low=1e4)
    light = p.reference.image.astype(float)
    exact = fftconvolve(light, spikes(), "same").astype(np.float32)
    p.science = p.science.with_(image=exact)
    truth = np.pad(spikes(), 1)
    off = {}
    for basis in ("delta", "gaussian"):
        kernel = matched(p, basis=basis, order=0)
        off[basis] = np.abs(kernel.at(160, 160) - truth).max() / truth.max()
    figure("free pixels without noise: largest error of the kernel over its peak", off["delta"], 1e-3)
    assert off["gaussian"] > 0.1


@pytest.fixture(scope="module")
def spiked():
    """With noise: kernel, products and context for each setting."""
    p = spiked_pair(71, low=2e4, high=2e6)
    out = {}
    for basis in ("gaussian", "auto"):
        ctx = context()
        out[basis] = (*subtract(p, ctx, basis=basis, **SPIKED), ctx)
    return p, out


def test_free_pixels_leave_noise_where_gaussians_leave_light(spiked, figure):
    p, out = spiked
    (plain, first, _), (kernel, made, ctx) = out["gaussian"], out["auto"]
    assert kernel.choice == "delta"
    stars = p.reference.image > 3000
    chi2 = [float(np.nanmean((m["difference"].image ** 2 / m["difference"].variance)[stars])) for m in (first, made)]
    assert chi2[0] > 2
    false = [int((np.abs(m["score"].image) > 5).sum()) for m in (first, made)]
    assert false[0] > 100
    assert false[1] == 0
    figure("spikes: chi2 on bright stars with free pixels, from 1", abs(chi2[1] - 1), 0.1)
    figure("spikes: score std on the whole field, from 1", abs(ctx.metrics["snr_std"] - 1), 0.03)
    figure("spikes: kernel sum, relative error", abs(kernel.sums(160, 160)[0] / 0.8 - 1), 0.003)
    assert kernel.quality["chi2_held_out"] < plain.quality["chi2_held_out"]


def test_the_choice_is_said_with_its_numbers(spiked, tmp_path):
    kernel, _, ctx = spiked[1]["auto"]
    q = kernel.quality
    assert ctx.metrics["basis"] == "delta"
    assert f"{q['chi2_gaussian']:.4f} with gaussian, {q['chi2_delta']:.4f} with delta" in ctx.metrics["basis_why"]
    assert q["chi2_delta"] < q["chi2_gaussian"]
    assert q["delta_chance"] < 1e-3
    assert q["penalty_strength"] in STRENGTHS
    assert spiked[1]["gaussian"][2].metrics["basis"] == "gaussian"
    kernel.save(tmp_path / "k.fits")
    header = fits.getheader(tmp_path / "k.fits", "KERNEL")
    assert header["KBASIS"] == "delta"
    for card, name in (("KCHI2G", "chi2_gaussian"), ("KCHI2D", "chi2_delta"), ("KPENALTY", "penalty_strength")):
        assert header[card] == pytest.approx(q[name])


def test_a_stored_kernel_of_pixels_gives_the_same_bytes(spiked, tmp_path):
    p, out = spiked
    kernel, made, _ = out["auto"]
    kernel.save(tmp_path / "k.fits")
    stored = MatchKernel.load(tmp_path / "k.fits")
    assert stored.choice == "delta"
    assert stored.images.tobytes() == kernel.images.tobytes()
    again = Difference().execute(
        context(), {"science": p.science, "reference": p.reference, "kernel": replace(stored, noise=kernel.noise)}
    )
    for name in ("image", "variance", "mask"):
        assert getattr(again["difference"], name).tobytes() == getattr(made["difference"], name).tobytes()
    assert again["score"].image.tobytes() == made["score"].image.tobytes()


def test_a_kernel_that_varies_is_followed(figure):
    """The two sides of the field have mirrored kernels."""
    p = spiked_pair(72, shape=(360, 360), stars=260, low=5000)
    other = spiked_pair(72, shape=(360, 360), stars=260, low=5000, kernel=spikes()[:, ::-1])
    u = np.linspace(0, 1, 360, dtype=np.float32)
    science = p.science.image * (1 - u) + other.science.image * u  # noise and kernel are blended alike
    variance = p.science.variance * (1 - u) ** 2 + other.science.variance * u**2
    p.science = p.science.with_(image=science, variance=variance)
    kernel = matched(p, basis="delta", order=1)
    for x in (40, 180, 320):
        f = x / 359
        truth = spikes() * (1 - f) + spikes()[:, ::-1] * f
        pad = kernel.shape[0] // 2 - 7
        got = fftconvolve(kernel.at(x, 180), gaussian(1.2, 6), "same")
        want = fftconvolve(np.pad(truth, pad), gaussian(1.2, 6), "same")
        figure(
            f"varying spikes at x = {x}, as stars show it, over its peak", np.abs(got - want).max() / want.max(), 0.03
        )


@pytest.fixture(scope="module")
def plain_units():
    return subtract(spiked_pair(73, shape=(300, 300), stars=160), basis="auto", **SPIKED)


def test_units_do_not_matter(plain_units, figure):
    plain, first = plain_units
    scaled, made = subtract(spiked_pair(73, shape=(300, 300), stars=160, scale=1e6), basis="auto", **SPIKED)
    assert scaled.choice == plain.choice == "delta"
    assert scaled.quality["penalty_strength"] == plain.quality["penalty_strength"]
    off = np.abs(scaled.at(100, 50) - plain.at(100, 50)).max() / plain.at(100, 50).max()
    figure("kernel of pixels with pixels x 1e6, relative to its peak", off, 1e-6)
    score = np.abs(made["score"].image - first["score"].image)
    figure("score with pixels x 1e6", np.nanmax(score / np.maximum(np.abs(first["score"].image), 1)), 1e-4)


def test_a_power_of_two_changes_no_bit(plain_units):
    plain, first = plain_units
    scaled, made = subtract(spiked_pair(73, shape=(300, 300), stars=160, scale=2.0**20), basis="auto", **SPIKED)
    assert scaled.images.tobytes() == plain.images.tobytes()
    assert (scaled.background / 2.0**20).tobytes() == plain.background.tobytes()
    assert made["score"].image.tobytes() == first["score"].image.tobytes()


def test_the_error_of_the_flux_scale_is_its_scatter(figure):
    pulls = []
    for seed in range(20):
        p = spiked_pair(300 + seed, shape=(200, 200), stars=30, low=2000, high=8000)
        kernel = matched(p, basis="delta", order=0)
        pulls.append((kernel.sums(100, 100)[0] - 0.8) / kernel.sum_error(100, 100))
    figure("flux scale by free pixels, scatter over its error", np.sqrt(np.mean(np.square(pulls))), 1.8)
    assert np.sqrt(np.mean(np.square(pulls))) > 0.6


def test_the_penalty_is_stronger_where_stars_are_faint():
    faint, bright = (
        matched(spiked_pair(74, stars=100, low=low, high=4 * low), basis="delta", order=0).quality["penalty_strength"]
        for low in (1500, 4e5)
    )
    assert faint > bright


def test_the_strength_has_the_least_chi2_of_its_neighbours(rng):
    *_, system = random_system(rng, n=30)
    used = rng.random(30) < 0.9
    best = STRENGTHS.index(chosen_strength(system, used))
    rows = np.flatnonzero(used)
    judges = np.isin(np.arange(30), rows[2::5])

    def cost(k):
        trial = system.penalised(STRENGTHS[k])
        a = trial.solve(used & ~judges).parameters  # there is no noise in the stamps to correct for
        return (np.asarray(trial.chi2(a)) * np.asarray(system.sums.pixels))[judges].sum()

    around = [k for k in (best - 1, best + 1) if 0 <= k < len(STRENGTHS)]
    assert all(cost(k) >= cost(best) for k in around)
    assert chosen_strength(system, np.arange(30) == 3) == 0.1


@pytest.mark.parametrize(
    ("stars", "basis", "choice"), [(20, "auto", "gaussian"), (20, "delta", "delta"), (1, "delta", "delta")]
)
def test_few_stars_do_not_choose(stars, basis, choice):
    ctx = context()
    kernel, made = subtract(pair(seed=8, stars=stars, low=2e4, shape=(200, 200), margin=50), ctx, basis=basis)
    assert kernel.choice == ("delta" if basis == "delta" else "gaussian")
    assert ("held-out stamps cannot tell, 10 are needed" in ctx.metrics["basis_why"]) == (basis == "auto")
    assert kernel.at(100, 100).sum() == pytest.approx(0.8, abs=0.05)
    assert np.isfinite(made["difference"].image).mean() > 0.7


@pytest.mark.parametrize("n", [12, 60])
def test_the_chance_is_that_of_the_signed_rank_test(rng, n):
    for shift in (-0.3, 0.0, 0.4):
        gain = rng.standard_t(2, n) + shift
        want = wilcoxon(gain, alternative="greater", method="approx", correction=False).pvalue
        assert signed_rank_chance(gain) == pytest.approx(want, rel=1e-9)
    assert np.isnan(signed_rank_chance(np.zeros(0)))


def test_one_bright_star_does_not_choose():
    rng = np.random.default_rng(5)
    weight, held = np.ones((40, 5, 5), np.float32), np.ones(40, bool)
    left = rng.normal(0, 1, (40, 5, 5)).astype(np.float32)
    much = left.copy()
    much[7] *= 30

    def solved(values, varied=()):
        return SimpleNamespace(left=values, varied=np.isin(np.arange(40), varied))

    one = choose("auto", solved(much), solved(left), weight, held)
    assert one.basis == "gaussian"
    assert one.figures["chi2_gaussian"] > 5 * one.figures["chi2_delta"]
    all_better = choose("auto", solved(left * np.float32(1.1)), solved(left), weight, held)
    assert all_better.basis == "delta"
    # better for most, but far worse for one
    assert choose("auto", solved(left * np.float32(1.1)), solved(much), weight, held).basis == "gaussian"
    changed = choose("auto", solved(much * np.float32(1.1), [7]), solved(much, [7]), weight, held)
    assert changed.figures["stamps_judging"] == 39
    assert changed.figures["chi2_gaussian"] < 2


def test_memory_is_what_the_sums_take():
    shape = (2048, 2048)
    stage = Match(basis="delta")
    sums = 8 * most_stamps(shape) * (DeltaBasis(LARGEST).size + 7) ** 2
    assert stage.memory(shape, "cpu") - Match().memory(shape, "cpu") == most_bytes(most_stamps(shape), None) > sums
    p = spiked_pair(75, stars=3000, shape=(320, 320))
    found = find_stars(p.reference)
    assert len(select(found, p.reference.good(), p.science.good(), 9, 7)) <= most_stamps((320, 320))


def test_on_a_device_the_kernel_is_the_same(spiked, monkeypatch):
    p, out = spiked
    want = out["auto"][0]
    support_standin.install(monkeypatch)
    device = resolve("cuda")
    inputs = {"science": p.science.to(device), "reference": p.reference.to(device)}
    kernel = Match(basis="auto", **SPIKED).execute(Context(device, id="test"), inputs)["kernel"]
    monkeypatch.undo()
    assert kernel.choice == "delta"
    assert kernel.quality["penalty_strength"] == want.quality["penalty_strength"]
    np.testing.assert_allclose(kernel.images, want.images, atol=1e-6 * want.images[0].max())
    np.testing.assert_allclose(kernel.covariance, want.covariance, rtol=1e-6, atol=1e-9 * np.abs(want.covariance).max())


def test_a_larger_kernel_than_its_disc_is_refused_and_not_cut():
    Match(basis="delta", kernel_half=LARGEST)
    Match(basis="auto", kernel_half=LARGEST + 1)  # for the Gaussians
    with pytest.raises(ConfigError, match=r"^match\.kernel_half: 13 is above 12, the largest where basis is delta$"):
        Match(basis="delta", kernel_half=LARGEST + 1)
