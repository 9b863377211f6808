# SPDX-License-Identifier: BSD-3-Clause
"""The kernel fit: against brute force, against a known kernel, and where data are few, scaled or wrong."""

import numpy as np
import pytest
from scipy.signal import fftconvolve
from scipy.spatial.distance import cdist
from support_pairs import context, gaussian, pair, scene_exposures, stars_image, subtract, whole_chain

from skydelta.errors import AlgorithmError, InputError, MisalignedError
from skydelta.io.field import Domain, polynomial_terms
from skydelta.kernels.normal_equations import BUDGET, System, budget, solve, stamp_sums
from skydelta.pipeline.simulate import build
from skydelta.stages.match import Match
from skydelta.stages.match.basis import gaussian_basis, kernel_half, matching_width, orthonormal
from skydelta.stages.match.fit import Trial, chosen_order, clipped, layout, supported_order
from skydelta.stages.match.registration import SEARCH, near_pairs
from skydelta.stages.recover import forced_fluxes


def sums_of(rng, n=12, m=11, half=4, order=1, variance=0.0, held=None):
    """Random stamps, their sums, and everything needed to build the design matrix by hand."""
    basis = gaussian_basis(1.0, half, (2, 1))
    stamps = rng.normal(0, 1, (n, m + 2 * half, m + 2 * half)).astype(np.float32)
    target = rng.normal(0, 1, (n, m, m)).astype(np.float32)
    weight = rng.uniform(0.5, 2, (n, m, m)).astype(np.float32)
    weight[rng.random(weight.shape) < 0.1] = 0
    u, v = rng.uniform(-1, 1, (2, n, m))
    psi = polynomial_terms(u[:, None, :], v[:, :, None], 1).transpose(1, 0, 2, 3)
    sums = stamp_sums(
        stamps, target, weight, np.full((n, m, m), variance, np.float32), np.eye(basis.size), (u, v), 1,
        basis, held,
    )  # fmt: skip
    x, y = rng.uniform(0, 100, (2, n))
    phi = polynomial_terms(*Domain.of((100, 100)).uv(x, y), order).T
    return basis, stamps, target, weight, psi, sums, phi


def test_normal_equations_equal_the_brute_force_least_squares():
    rng = np.random.default_rng(3)
    basis, stamps, target, weight, psi, sums, phi = sums_of(rng)
    free = layout(basis.size, 3, 1, False)
    solution = solve(*System(sums, phi, free).assemble(np.ones(12, bool)))
    rows, right = [], []
    for s in range(12):
        planes = np.array([fftconvolve(stamps[s].astype(float), b, "valid") for b in basis.images()] + list(psi[s]))
        design = planes[:, None] * phi[s][None, :, None, None]
        w = np.sqrt(weight[s].astype(float))
        rows.append((design[free.free] * w).reshape(free.size, -1).T)
        right.append((target[s] * w).ravel())
    want, *_ = np.linalg.lstsq(np.concatenate(rows), np.concatenate(right), rcond=None)
    np.testing.assert_allclose(solution.parameters, want, rtol=1e-7, atol=1e-9)
    inverse = np.linalg.inv(np.concatenate(rows).T @ np.concatenate(rows))
    np.testing.assert_allclose(solution.covariance, inverse, rtol=1e-6, atol=1e-12)
    assert solution.rank == free.size


def test_sums_do_not_depend_on_how_many_stamps_are_held_at_once():
    one, some, whole = (sums_of(np.random.default_rng(3), held=held)[5] for held in (1, 100_000, None))
    np.testing.assert_array_equal(one.products, whole.products)
    np.testing.assert_array_equal(some.products, whole.products)


def test_a_device_holds_more_stamps_of_a_large_image_and_a_cpu_does_not():
    assert budget("cuda", 1024**2) == BUDGET["cuda"]
    assert budget("cuda", 4096**2) == 16 * 4096**2
    assert budget("cpu", 4096**2) == BUDGET["cpu"]


def test_stamp_chi2_needs_no_pixels():
    rng = np.random.default_rng(4)
    basis, stamps, target, weight, psi, sums, _ = sums_of(rng)
    c = rng.normal(0, 1, (12, basis.size + 3))
    got = sums.chi2(np.column_stack([c, np.full(12, -1.0)]))
    for s in range(12):
        planes = np.array([fftconvolve(stamps[s].astype(float), b, "valid") for b in basis.images()] + list(psi[s]))
        model = np.tensordot(c[s], planes, 1)
        assert got[s] == pytest.approx((weight[s] * (target[s] - model) ** 2).sum(), rel=1e-6)


def test_only_the_first_basis_term_has_a_sum():
    sums = gaussian_basis(1.3, 12).images().sum(axis=(1, 2))
    assert sums[0] == pytest.approx(1)
    assert np.abs(sums[1:]).max() < 1e-12


def test_a_deficient_matrix_is_cut_and_counted():
    a = np.diag([1.0, 2.0, 3.0, 4.0])
    a[3] = a[2]
    a[:, 3] = a[:, 2]
    solution = solve(a, np.array([1.0, 2.0, 3.0, 3.0]))
    assert solution.rank == 3
    np.testing.assert_allclose(a @ solution.parameters, [1, 2, 3, 3], atol=1e-9)
    np.testing.assert_allclose(solution.covariance, np.linalg.pinv(a), atol=1e-12)
    assert solution.condition == pytest.approx(np.sqrt(6) * np.sqrt(2.25), rel=1e-9)  # eigenvalues 1, 1, 2, 0


def test_the_condition_is_that_of_the_scaled_matrix():
    a = np.random.default_rng(4).normal(0, 1, (9, 40))
    a *= np.logspace(0, 6, 9)[:, None]
    solution = solve(a @ a.T, np.ones(9))
    scale = 1 / np.sqrt(np.diag(a @ a.T))
    assert solution.condition == pytest.approx(np.linalg.cond(a @ a.T * scale * scale[:, None], "fro"), rel=1e-9)


def test_the_true_kernel_is_recovered():
    p = pair(seed=5, stars=120, sky=(20.0, 5.0), low=3000, high=9e4)
    kernel, _ = subtract(p, order=0)
    got = fftconvolve(gaussian(1.25, 16), kernel.at(128, 128), "same")
    truth = 0.8 * gaussian(1.7, 16)
    assert np.abs(got - truth).max() < 0.008 * truth.max()
    assert got.sum() == pytest.approx(0.8, abs=2e-3)


def test_noise_in_the_reference_does_not_pull_the_kernel_down(figure):
    """Faint stars in a noisy reference: ordinary least squares loses several times more of the kernel's sum."""
    sums = []
    for seed in range(6):
        p = pair(seed=seed, stars=150, sky=(100.0, 150.0), low=800, high=4000, widths=(1.8, 1.3))
        kernel, _ = subtract(p, order=0)
        sums.append(kernel.at(128, 128).sum())
    figure("kernel sum, faint stars, relative bias", abs(np.mean(sums) / 0.8 - 1), 0.006)


def test_a_variable_star_is_clipped_and_held_out_stamps_are_not_fitted():
    p = pair(seed=6, stars=80, low=5000)
    bright = int(np.argmax(p.flux))
    p.science.image[:] += 0
    extra = pair(seed=6, stars=80, low=5000, transients=[(p.x[bright], p.y[bright], 0.5 * p.flux[bright])])
    kernel, _ = subtract(extra)
    role, x, y = (np.asarray(kernel.stamps[c]) for c in ("role", "x", "y"))
    here = np.hypot(x - p.x[bright], y - p.y[bright]) < 2
    assert here.any()
    assert set(role[here]) <= {"clipped", "held-out"}
    assert (role == "held-out").sum() == pytest.approx(len(role) / 5, abs=1)
    assert kernel.quality["stamps_fit"] == (role == "fit").sum()


@pytest.fixture(scope="module")
def plain_units():
    return subtract(pair(seed=7))


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_do_not_matter(plain_units, scale, figure):
    plain, first = plain_units
    scaled, made = subtract(pair(seed=7, scale=scale))
    np.testing.assert_array_equal(scaled.stamps["role"], plain.stamps["role"])
    off = np.abs(scaled.at(100, 50) - plain.at(100, 50)).max() / plain.at(100, 50).max()
    figure(f"kernel with pixels x {scale:g}, relative to its peak", off, 1e-6)
    np.testing.assert_allclose(scaled.background / scale, plain.background, rtol=1e-3, atol=1e-3)
    score = np.abs(made["score"].image - first["score"].image)
    figure(f"score with pixels x {scale:g}", np.nanmax(score / np.maximum(np.abs(first["score"].image), 1)), 1e-4)


@pytest.mark.parametrize("power", [-20, 20])
def test_a_power_of_two_changes_no_bit(plain_units, power):
    plain, first = plain_units
    scale = 2.0**power
    scaled, made = subtract(pair(seed=7, scale=scale))
    assert scaled.images.tobytes() == plain.images.tobytes()
    assert (scaled.background / scale).tobytes() == plain.background.tobytes()
    assert made["score"].image.tobytes() == first["score"].image.tobytes()
    assert (made["difference"].image / np.float32(scale)).tobytes() == first["difference"].image.tobytes()
    assert (made["difference"].variance / np.float32(scale**2)).tobytes() == first["difference"].variance.tobytes()


@pytest.mark.parametrize(("stars", "order"), [(1, 0), (2, 0), (5, 0), (60, 2)])
def test_few_stars_lower_the_order_and_say_so(stars, order):
    p = pair(seed=8, stars=stars, low=2e4, shape=(200, 200), margin=50 if stars < 10 else 8)
    ctx = context()
    kernel, made = subtract(p, ctx)
    assert kernel.order == order
    assert ("order_lowered" in ctx.flags) == (order < 2)
    assert ("few_stamps" in ctx.flags) == (kernel.quality["stamps_fit"] < 5)
    image = made["difference"].image
    assert np.isfinite(image).mean() > 0.75
    assert kernel.at(100, 100).sum() == pytest.approx(0.8, abs=0.05)


def test_no_star_is_an_error_with_numbers():
    p = pair(seed=9, stars=0)
    with pytest.raises(AlgorithmError, match="none of the 0 stars"):
        Match().execute(context(), {"science": p.science, "reference": p.reference})


def with_vanished(p, flux, at=((60.0, 130.0), (140.0, 60.0))):
    """The pair with sources that the reference alone has."""
    x, y = np.transpose(at)
    light = stars_image(p.reference.shape, x, y, [flux] * len(at), 1.25)
    p.reference = p.reference.with_(image=(p.reference.image + light).astype(np.float32))
    return p


@pytest.mark.parametrize("stars", [3, 12])
def test_a_source_that_one_image_alone_has_is_no_stamp(stars):
    """It outweighs all others, and the kernel that makes it vanish has a chi2 of one."""
    ctx = context()
    p = pair(seed=61, shape=(200, 200), stars=stars, low=3000, high=5000, margin=40)
    kernel, _ = subtract(with_vanished(p, 4e4), ctx)
    role = kernel.stamps["role"][np.hypot(kernel.stamps["x"] - 60, kernel.stamps["y"] - 130) < 2]
    assert set(role) == {"clipped"}
    assert abs(ctx.metrics["kernel_sum"] - 0.8) < max(0.05, 3 * ctx.metrics["kernel_sum_err"])
    assert ctx.metrics["stamps_changed"] >= 2


def test_a_pair_that_shares_no_star_is_an_error_with_numbers():
    p = with_vanished(pair(seed=62, shape=(200, 200), stars=0), 4e4)
    with pytest.raises(AlgorithmError, match=r"2 of the 2 stars of the reference image .* none of which") as e:
        Match().execute(context(), {"science": p.science, "reference": p.reference})
    assert e.value.numbers["stamps"] == 2


@pytest.mark.parametrize(("galaxies", "seed"), [(3, 2), (3, 3), (10, 1), (10, 2), (10, 5)])
def test_a_field_of_galaxies_gives_the_flux_scale_or_stops(galaxies, seed):
    """Six sources in it have appeared or vanished."""
    none = dict.fromkeys(("stars", "saturated", "dipoles"), 0)
    scene = build(size=384, seed=seed, galaxies=galaxies, same_grid=True, **none)
    ctx = context()
    try:
        kernel, _ = whole_chain(*scene_exposures(scene), ctx)
    except AlgorithmError as e:
        assert e.numbers["stars"] < 5
        return
    scale, error = ctx.metrics["kernel_sum"], ctx.metrics["kernel_sum_err"]
    truth = 0.8 if kernel.direction == "reference" else 1 / 0.8
    assert abs(scale - truth) < max(0.03 * truth, 4 * error)
    assert ("few_stamps" in ctx.flags) == (kernel.quality["stamps_fit"] < 5)


@pytest.mark.parametrize(("stars", "low"), [(1, 2e4), (6, 2e3)])
def test_the_error_of_the_flux_scale_is_its_scatter(stars, low, figure):
    pulls = []
    for seed in range(12):
        ctx = context()
        p = pair(seed=300 + seed, shape=(200, 200), stars=stars, low=low, high=2 * low, margin=50)
        Match().execute(ctx, {"science": p.science, "reference": p.reference})
        pulls.append((ctx.metrics["kernel_sum"] - 0.8) / ctx.metrics["kernel_sum_err"])
    figure(f"flux scale of {stars} stamps, scatter over its error", np.sqrt(np.mean(np.square(pulls))), 1.5)
    assert np.sqrt(np.mean(np.square(pulls))) > 0.6


@pytest.mark.parametrize(("flux", "said"), [(1.5e3, True), (5e4, False)])
def test_a_flux_scale_that_the_stamps_hardly_tell_is_said_with_its_error(flux, said):
    ctx = context()
    p = pair(seed=63, shape=(200, 200), stars=2, low=flux, high=1.01 * flux, margin=60)
    Match().execute(ctx, {"science": p.science, "reference": p.reference})
    assert ("flux_scale_uncertain" in ctx.flags) == said
    assert f"{ctx.metrics['kernel_sum']:.3g} +- {ctx.metrics['kernel_sum_err']:.2g}" in ctx.flags["few_stamps"]


def test_a_stage_that_is_called_as_a_function_says_its_flags(caplog):
    """Nobody reads the receipt of a call: an order that was lowered, images that are not aligned."""
    p = pair(seed=11, offset=(5.0, 0.0))
    Match()(p.science, p.reference, device="cpu")
    said = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert any("misaligned" in line and "offset by" in line for line in said)


def test_supported_orders():
    assert [supported_order(2, n) for n in (0, 1, 8, 9, 17, 18, 500)] == [0, 0, 0, 1, 1, 2, 2]
    assert [chosen_order(n) for n in (1, 20, 199, 200)] == [0, 2, 2, 3]


@pytest.mark.parametrize(("widths", "direction"), [((1.7, 1.25), "reference"), ((1.25, 1.7), "science")])
def test_the_sharper_image_is_convolved(widths, direction):
    kernel, _ = subtract(pair(seed=10, widths=widths))
    assert kernel.direction == direction


@pytest.mark.parametrize("offset", [(5.0, 0.0), (-3.0, 4.0)])
def test_a_wrong_registration_fails_but_goes_on(offset):
    ctx = context()
    kernel, made = subtract(pair(seed=11, offset=offset), ctx)
    assert "misaligned" in ctx.flags
    assert isinstance(ctx.failures[0], MisalignedError)
    assert ctx.metrics["registration_dx_px"] == pytest.approx(-offset[0], abs=0.1)
    assert np.isfinite(made["difference"].image).any()
    assert kernel.size > 0


def test_an_offset_beyond_the_search_fails_too():
    """Hundreds of stars on both sides, none of them at home: chance pairs are no alignment."""
    ctx = context()
    subtract(pair(seed=41, shape=(384, 384), stars=250, offset=(45.0, 10.0), low=3000), ctx)
    assert "misaligned" in ctx.flags
    assert isinstance(ctx.failures[0], MisalignedError)


def test_a_small_registration_error_is_taken_up_by_the_kernel():
    ctx = context()
    subtract(pair(seed=12, offset=(0.3, -0.2)), ctx)
    assert not ctx.failures


def test_shapes_and_variance_are_checked():
    p, q = pair(seed=13), pair(seed=13, shape=(200, 256))
    with pytest.raises(InputError, match="align them first"):
        Match().execute(context(), {"science": p.science, "reference": q.reference})
    with pytest.raises(InputError, match="science image has no variance"):
        Match().execute(context(), {"science": p.science.with_(variance=None), "reference": p.reference})


def test_widths_and_sizes():
    assert matching_width(4.0, 3.0) == pytest.approx(np.sqrt(7) / 2.3548)
    assert matching_width(3.0, 3.0) == pytest.approx(0.7)
    assert kernel_half(1.13) == 11
    assert kernel_half(2.0) == 11
    assert kernel_half(3.5) == 14
    assert kernel_half(20.0) == 31


@pytest.mark.parametrize("seed", [81, 82, 83])
def test_a_wide_kernel_does_not_cost_the_stars_near_the_edge(seed, figure):
    """A kernel box that is far larger than the kernel takes stars from the fit, and leaves parts without any."""
    p = pair(seed=seed, shape=(500, 500), stars=100, widths=(4.2, 1.25), low=5000, high=2e5)
    kernel, made = subtract(p)
    light = stars_image((500, 500), p.x, p.y, p.flux * 0.8, 4.2) > 200
    chi2 = np.nanmean((made["difference"].image ** 2 / made["difference"].variance)[light])
    figure("wide kernel: chi2 on stars, from 1", abs(chi2 - 1), 0.02)
    figure("wide kernel: flux scale, relative error", abs(kernel.sums(250, 250)[0] / 0.8 - 1), 0.005)


def test_clipping_stops_before_half_is_gone():
    rng = np.random.default_rng(14)
    basis, *_, sums, phi = sums_of(rng, n=12)
    every = np.ones(12, bool)
    result = clipped(Trial.of(System(sums, phi, layout(basis.size, 3, 1, False)), every), every, 0.01)
    assert result.used.sum() >= 6


@pytest.mark.parametrize("widths", [(1.7, 1.25), (1.25, 1.7)])
def test_the_background_of_a_sparse_field_is_that_of_its_sky(widths, figure):
    """The stamps hold 3 % of the sky: fitted to these alone the background is five times as noisy."""
    p = pair(seed=60, shape=(640, 640), stars=22, low=4000, widths=widths)
    u = (np.arange(640) - 319.5) / 320
    truth = 3.0 * u - 2.0 * u[:, None] + 4.0 * u[:, None] * u
    p.science = p.science.with_(image=(p.science.image + truth).astype(np.float32))
    kernel = Match().execute(context(), {"science": p.science, "reference": p.reference})["kernel"]
    x, y = (a.ravel() for a in np.meshgrid(np.arange(32, 640, 64.0), np.arange(32, 640, 64.0)))
    # in the unit of the image that is not convolved; what is added to the science image is taken off the other
    unit = 1.0 if kernel.direction == "reference" else -kernel.sums(320.0, 320.0)[0]
    off = kernel.background_at(x, y) / unit - truth[y.astype(int), x.astype(int)]
    noise = np.sqrt((400 + 0.64 * 100) * 6 / 640**2)
    figure("rms error of the background in a sparse field, over that of all its pixels", off.std() / noise, 2.0)
    assert off.std() < 2.0 * noise
    assert abs(off.mean()) < 3 * noise


def test_a_stamp_dropped_by_an_earlier_fit_comes_back_when_it_agrees():
    """The clipping ends where the stamps in use are those within the limit, whatever it began with."""
    rng = np.random.default_rng(15)
    basis, *_, sums, phi = sums_of(rng, n=12)
    every, system = np.ones(12, bool), System(sums, phi, layout(basis.size, 3, 1, False))
    begun = np.arange(12) != 4
    result = clipped(Trial.of(system, begun), every, 50.0)
    np.testing.assert_array_equal(result.used, every)
    np.testing.assert_array_equal(result.chi2, clipped(Trial.of(system, every), every, 50.0).chi2)


def test_an_image_minus_itself_is_nothing():
    """The noise is the same in both: no correction for it, a kernel of one, no candidate, and a flag."""
    p = pair(seed=40, stars=80)
    p.science = p.reference
    ctx = context()
    kernel, made = subtract(p, ctx)
    assert "shared_noise" in ctx.flags
    assert kernel.at(128, 128).sum() == pytest.approx(1, abs=1e-3)
    z = made["difference"].image / np.sqrt(made["difference"].variance)
    assert np.nanmax(np.abs(z)) < 0.5


@pytest.mark.parametrize("wrong", [("science",), ("science", "reference")])
def test_a_variance_that_is_too_large_is_not_called_shared_noise(wrong):
    """Ten times the variance: the images agree too well, but the noise of one says nothing about that of the other."""
    p = pair(seed=40, stars=80)
    for role in wrong:
        exposure = getattr(p, role)
        setattr(p, role, exposure.with_(variance=10 * exposure.variance))
    ctx = context()
    kernel, _ = subtract(p, ctx)
    assert "shared_noise" not in ctx.flags
    said = ctx.flags["noise_overstated"]
    level = {"science": 1.0, "reference": 1.0} | dict.fromkeys(wrong, 10**-0.5)
    assert f"{level['science']:.2f} times (science) and {level['reference']:.2f} times (reference)" in said
    assert kernel.at(128, 128).sum() == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("factor", [1.0, 10.0])
def test_noise_that_is_shared_is_said_with_its_correlation(factor, figure):
    """The science image is the reference and a little more noise, its own variance right or not."""
    p = pair(seed=46, stars=80)
    rng = np.random.default_rng(46)
    more = rng.normal(0, 5, p.reference.shape).astype(np.float32)
    p.science = p.reference.with_(image=p.reference.image + more, variance=(p.reference.variance + 25) * factor)
    ctx = context()
    subtract(p, ctx)
    assert "shared_noise" in ctx.flags
    truth = (100 / 125) ** 0.5
    figure("correlation of noise that is shared", abs(ctx.metrics["noise_shared"] - truth), 0.02)
    assert f"correlation of {ctx.metrics['noise_shared']:.2f}" in ctx.flags["shared_noise"]


@pytest.mark.parametrize(
    ("photometric", "order", "contrast"),
    [("constant", 2, 0.0), ("varying", 2, 0.2), ("auto", 1, 0.2), ("auto", 2, 0.0)],
)
def test_photometric_scale_is_one_number_or_varies(photometric, order, contrast):
    """A science image with a gain gradient of +-10 %: one scale may not follow it; left to itself, the fit does
    where there are stamps enough for the order."""
    p = pair(seed=42, shape=(320, 320), stars=150, low=6000, sky=(60.0, 30.0))
    gradient = (1 + 0.1 * (np.arange(320) / 160 - 1)).astype(np.float32)
    p.science = p.science.with_(image=p.science.image * gradient, variance=p.science.variance * gradient**2)
    kernel, _ = subtract(p, order=order, photometric=photometric)
    left, right = (kernel.at(x, 160.0).sum() for x in (20.0, 300.0))
    assert right / left - 1 == pytest.approx(contrast * 280 / 320, abs=0.02)


@pytest.mark.parametrize("seed", range(47, 53))
def test_one_flux_ratio_stays_one_number(seed):
    """Chance alone makes the ratio vary in one field of ten thousand."""
    ctx = context()
    kernel, _ = subtract(pair(seed=seed, shape=(320, 320), stars=150, low=6000), ctx, order=2)
    assert ctx.metrics["flux_ratio_varies"] is False
    assert np.ptp(kernel.sums(np.array([5.0, 310.0]), np.array([5.0, 310.0]))) < 1e-9


def test_kernel_sums_are_those_of_the_kernels():
    kernel, _ = subtract(pair(seed=43), order=1)
    x, y = np.array([10.0, 128.0, 240.5]), np.array([200.0, 128.0, 3.0])
    np.testing.assert_allclose(kernel.sums(x, y), kernel.render(x, y).sum(axis=(1, 2)), rtol=1e-12)
    at = [kernel.at(float(a), float(b)).sum() for a, b in zip(kernel.stamps["x"], kernel.stamps["y"], strict=True)]
    np.testing.assert_allclose(kernel.stamps["kernel_sum"], at, rtol=1e-10)


def test_near_pairs_are_those_of_all_distances():
    rng = np.random.default_rng(44)
    s, r = rng.uniform(0, 300, (80, 2)), rng.uniform(0, 300, (60, 2))
    want = np.nonzero(cdist(s, r) <= SEARCH)
    assert set(zip(*near_pairs(s, r), strict=True)) == set(zip(*want, strict=True))
    assert not len(near_pairs(s, s + 1000)[0])


def test_the_basis_is_orthonormal_as_seen_through_a_star():
    """And spans the same functions, with the sum on the first alone."""
    plain = gaussian_basis(1.3, 12)
    made = orthonormal(plain, 1.2)
    images = made.images()
    pad = np.pad(images, ((0, 0), (6, 6), (6, 6)))
    seen = np.array([fftconvolve(b, gaussian(1.2, 6), "same") for b in pad]).reshape(plain.size, -1)
    gram = seen @ seen.T
    np.testing.assert_allclose(gram[1:, 1:], np.eye(plain.size - 1), atol=2e-3)
    sums = images.sum(axis=(1, 2))
    assert sums[0] == pytest.approx(1, abs=1e-8)
    assert np.abs(sums[1:]).max() < 1e-8 * np.abs(images).max()
    q, _ = np.linalg.qr(images.reshape(plain.size, -1).T)
    old = plain.images().reshape(plain.size, -1).T
    old /= np.linalg.norm(old, axis=0)
    assert np.abs(old - q @ (q.T @ old)).max() < 1e-7


def test_the_kernel_is_well_conditioned():
    kernel, _ = subtract(pair(seed=7), order=0)
    assert kernel.rank == kernel.size
    assert kernel.condition < 1e6


def test_a_change_on_a_star_too_faint_for_its_chi2_is_kept_out_of_the_fit(figure):
    """Three sources of S/N 20 on stars of the fit: the kernel must not take them up."""
    settings = {"seed": 45, "shape": (320, 320), "stars": 120, "low": 4000}
    quiet = context()
    kernel, _ = subtract(pair(**settings), quiet, order=1)
    assert quiet.metrics["stamps_changed"] <= 1
    fitted = kernel.stamps[kernel.stamps["role"] == "fit"]
    x, y = (np.asarray(fitted[n])[[5, 20, 35]] + 0.8 for n in "xy")
    flux = 2500.0
    ctx = context()
    p = pair(**settings, transients=[(a, b, flux) for a, b in zip(x, y, strict=True)])
    again, made = subtract(p, ctx, order=1)
    for a, b in zip(x, y, strict=True):
        here = np.hypot(again.stamps["x"] - a, again.stamps["y"] - b) < 3
        assert set(again.stamps["role"][here]) == {"clipped"}
    assert ctx.metrics["stamps_changed"] >= 3
    got, _ = forced_fluxes(made["whitened"], x, y)
    figure("flux of changes on stars of the fit, relative", abs(got.mean() / flux - 1), 0.05)


def test_stars_without_room_are_told_with_the_room_that_they_need():
    p = pair(seed=9, shape=(100, 120), stars=6, margin=20)
    p.science.mask[30:70, 30:90] = p.science.planes.bit("BAD")
    with pytest.raises(AlgorithmError, match=r"(\d+) nearer than (\d+) px to the edge of 120 x 100 px") as e:
        Match(kernel_half=12, stamp_half=20).execute(context(), {"science": p.science, "reference": p.reference})
    said, numbers = str(e.value), e.value.numbers
    assert "nearer than 32 px to the edge" in said
    assert numbers["room_px"] == 65
    assert numbers["edge"] + numbers["masked"] + numbers["saturated"] == numbers["stars"]
    assert not numbers["masked"] or f"{numbers['masked']} with an unusable pixel in their 65 x 65 px" in said
    assert said.endswith("smaller kernel_half and stamp_half need less room")
