# SPDX-License-Identifier: BSD-3-Clause
"""The kernel fit and the noise correlation on a device: as on the CPU, the same bytes twice, honest about rank."""

import numpy as np
import pytest
from support_pairs import context, pair

from skydelta.kernels.backend import resolve, to_host
from skydelta.kernels.normal_equations import System, solve, stamp_sums
from skydelta.stages.base import Context
from skydelta.stages.match import Match
from skydelta.stages.match.basis import gaussian_basis
from skydelta.stages.match.fit import layout
from skydelta.stages.noise import pair_noise

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("order", [0, 2])
def test_sums_and_system_equal_those_of_the_cpu(order):
    rng = np.random.default_rng(51)
    basis, n, m, half = gaussian_basis(1.0, 5, (3, 2, 1)), 37, 13, 5
    stamps = rng.normal(0, 1, (n, m + 2 * half, m + 2 * half)).astype(np.float32)
    target, variance = rng.normal(0, 1, (2, n, m, m)).astype(np.float32)
    weight = (rng.uniform(0.5, 2, (n, m, m)) * (rng.random((n, m, m)) > 0.1)).astype(np.float32)
    uv, phi = tuple(rng.uniform(-1, 1, (2, n, m))), rng.uniform(-1, 1, (n, 3))
    free, use = layout(basis.size, (order + 1) * (order + 2) // 2, 1, False), rng.random(n) < 0.9
    made = []
    for backend in (resolve("cpu"), resolve("cuda")):
        planes = [backend.asarray(a) for a in (stamps, target, weight, variance)]
        sums = stamp_sums(*planes, np.eye(basis.size), uv, order, basis)
        system = System(sums, phi, free)
        a, b = system.assemble(use)
        solution = solve(a, b)
        made.append([
            to_host(v)
            for v in (
                sums.products, sums.pixels, sums.level, a, b, solution.parameters, solution.covariance,
                system.chi2(solution.parameters), system.undiluted(solution, use),
            )
        ])  # fmt: skip
        assert solution.rank == free.size
        np.testing.assert_allclose(solution.condition, np.linalg.cond(to_host(solution.matrix), "fro"), rtol=1e-6)
    for host, device in zip(*made, strict=True):
        np.testing.assert_allclose(device, host, rtol=1e-9, atol=1e-9 * np.abs(host).max())


def test_deficient_and_indefinite_systems_on_the_device():
    """The last two parameters cannot be told apart; Cholesky must notice, and the sum of the two is still known."""
    a = np.diag([1.0, 2.0, 3.0, 3.0])
    a[3, 2] = a[2, 3] = 3.0
    backend = resolve("cuda")
    a_, b_ = backend.asarray(a), backend.asarray(np.array([1.0, 2.0, 3.0, 3.0]))
    solution = solve(a_, b_)
    assert solution.rank == 3
    np.testing.assert_allclose(to_host(solution.parameters), [1, 1, 0.5, 0.5], atol=1e-12)
    with pytest.raises(np.linalg.LinAlgError):
        backend.cholesky(backend.asarray(np.diag([1.0, -1.0, 2.0])))
    with pytest.raises(np.linalg.LinAlgError):
        resolve("cpu").cholesky(np.diag([1.0, -1.0, 2.0]))


def test_the_kernel_equals_that_of_the_cpu_and_itself():
    p = pair(seed=52, shape=(512, 512), stars=200, low=3000)
    backend = resolve("cuda")
    moved = {"science": p.science.to(backend), "reference": p.reference.to(backend)}
    host = Match().execute(context(), {"science": p.science, "reference": p.reference})["kernel"]
    one, two = (Match().execute(Context(backend, id="test"), moved)["kernel"] for _ in range(2))
    np.testing.assert_array_equal(one.coefficients, two.coefficients)
    np.testing.assert_array_equal(one.covariance, two.covariance)
    assert list(one.stamps["role"]) == list(host.stamps["role"])
    # directions that the stamps hardly determine carry the rounding of a matrix of condition 1e13 and more
    np.testing.assert_allclose(one.images, host.images, atol=2e-3 * host.images[0].max())
    np.testing.assert_allclose(one.stamps["chi2"], host.stamps["chi2"], atol=2e-3)


def test_the_kernel_of_free_pixels_equals_that_of_the_cpu_and_itself():
    p = pair(seed=54, shape=(512, 512), stars=200, low=3000)
    backend = resolve("cuda")
    moved = {"science": p.science.to(backend), "reference": p.reference.to(backend)}
    stage = Match(basis="delta", order=1, kernel_half=8)
    host = stage.execute(context(), {"science": p.science, "reference": p.reference})["kernel"]
    one, two = (stage.execute(Context(backend, id="test"), moved)["kernel"] for _ in range(2))
    np.testing.assert_array_equal(one.coefficients, two.coefficients)
    assert one.choice == "delta"
    assert one.quality["penalty_strength"] == host.quality["penalty_strength"]
    assert list(one.stamps["role"]) == list(host.stamps["role"])
    np.testing.assert_allclose(one.images, host.images, atol=2e-3 * host.images[0].max())
    np.testing.assert_allclose(one.stamps["chi2"], host.stamps["chi2"], atol=2e-3)


def test_noise_correlation_equals_that_of_the_cpu():
    p = pair(seed=53, shape=(384, 500), correlate=0.7, sky=(60.0, 300.0), low=8000)
    backend = resolve("cuda")
    white, rho = pair_noise(p.science.to(backend), p.reference.to(backend)).correlations(0.8)
    want = pair_noise(p.science, p.reference).correlations(0.8)[1]
    assert white is None
    np.testing.assert_allclose(rho, want, atol=1e-5)
