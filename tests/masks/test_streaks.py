# SPDX-License-Identifier: BSD-3-Clause
"""Trails are found on simulated exposures down to a signal-to-noise of 1 a pixel; spikes and bad columns are not taken
for them."""

import numpy as np
import pytest
from support_masks import NOISE, exposed, marked, stars, trail

from skydelta.errors import InputError
from skydelta.kernels.backend import CPU
from skydelta.kernels.radon import line_sums
from skydelta.stages.base import Context
from skydelta.stages.streaks import Streaks

SHAPE = (420, 460)


def run(exposure, **settings):
    ctx = Context(CPU)
    out = Streaks(**settings).execute(ctx, {"image": exposure})["image"]
    np.testing.assert_array_equal(out.image, exposure.image)
    return marked(out, "STREAK"), ctx


def field(seed, count=100, shape=SHAPE, fwhm=3.0):
    rng = np.random.default_rng(seed)
    return rng, stars(rng, shape, fwhm, count, beta=3.0)[0]


def through(angle, x=230.0, y=210.0):
    t = np.radians(angle)
    return (x - 900 * np.cos(t), y - 900 * np.sin(t)), (x + 900 * np.cos(t), y + 900 * np.sin(t))


def test_sums_are_those_along_lines():
    image = np.random.default_rng(1).normal(size=(13, 9)).astype(np.float32)
    n, seen = 16, []
    padded = np.zeros((n, 3 * n))
    padded[:13, n : n + 9] = image
    for rows, sums in line_sums(image):
        assert sums.shape == (n // rows, rows, 9 + n)
        seen.append(rows)
        for s in {0, rows // 2, rows - 1}:
            # one pixel of each row: the recursion written out for a single line
            def path(length, slope):
                if length == 1:
                    return [0]
                half = path(length // 2, slope // 2)
                return [*half, *(slope - slope // 2 + k for k in half)]

            x = np.array(path(rows, s))
            assert x[0] == 0 and x[-1] == s and (np.abs(x - np.arange(rows) * s / max(rows - 1, 1)) <= 1).all()
            for p in range(n // rows):
                for start in (-3, 0, 5):
                    want = padded[p * rows + np.arange(rows), n + start + x].sum()
                    assert sums[p, s, n + start] == pytest.approx(want, abs=1e-5)
    assert seen == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("angle", [0, 27, 45, 90, 121, 178])
def test_any_angle_at_one_sigma_a_pixel(angle, figure):
    rng, light = field(angle)
    streak = trail(SHAPE, *through(angle, 230 + rng.uniform(-80, 80)), NOISE, 3.0)
    found, ctx = run(exposed(rng, light + streak, saturation=6e4))
    true = streak > 0.5 * NOISE
    assert ctx.metrics["streaks"] == 1 and not ctx.flags
    off = abs((ctx.metrics["streak_angle"][0] - angle + 90) % 180 - 90)
    figure(f"streak of S/N 1 a pixel at {angle} degrees: missed pixels", 1 - found[true].mean(), 0.03)
    figure(f"streak of S/N 1 a pixel at {angle} degrees: angle", off, 0.3)
    figure(f"streak of S/N 1 a pixel at {angle} degrees: masked over its pixels", found.sum() / true.sum(), 5)
    assert ctx.metrics["streak_fraction"] == found.mean()


@pytest.mark.parametrize(("first", "second"), [(1, 50), (30, 20)])
def test_two_at_once(first, second, figure):
    rng, light = field(7)
    a = trail(SHAPE, (-50, 60), (600, 450), first * NOISE, 3.0)
    b = trail(SHAPE, (100, -20), (240, 700), second * NOISE, 4.0)
    found, ctx = run(exposed(rng, light + a + b, saturation=6e4))
    true = (a > 0.5 * NOISE) | (b > 0.5 * NOISE)
    assert ctx.metrics["streaks"] == 2
    figure(f"two streaks of S/N {first} and {second} a pixel: missed pixels", 1 - found[true].mean(), 0.03)


@pytest.mark.parametrize(
    ("ends", "snr", "fwhm"),
    [
        (((150, 150), (330, 270)), 3, 3.0),  # both ends inside
        (((-50, 130), (300, -90)), 3, 3.0),  # cuts a corner
        (((200, 200), (900, 420)), 2, 3.0),  # enters at one edge
        (((-50, 60), (600, 400)), 2, 12.0),  # out of focus
        (((-50, 60), (600, 400)), 100, 2.2),
    ],
)
def test_short_wide_and_bright(ends, snr, fwhm, figure):
    rng, light = field(8)
    streak = trail(SHAPE, *ends, snr * NOISE, fwhm)
    found, ctx = run(exposed(rng, light + streak, saturation=6e4))
    true = streak > 0.5 * NOISE
    assert ctx.metrics["streaks"] == 1
    figure(f"streak {ends} of S/N {snr}, FWHM {fwhm:g}: missed pixels", 1 - found[true].mean(), 0.04)
    figure(f"streak {ends} of S/N {snr}, FWHM {fwhm:g}: masked over its pixels", found.sum() / true.sum(), 4)


def test_stars_alone_are_no_streaks():
    for seed, count in ((1, 100), (2, 400)):
        rng, light = field(seed, count)
        found, ctx = run(exposed(rng, light, saturation=6e4))
        assert not found.any() and ctx.metrics["streaks"] == 0, (seed, ctx.metrics)


@pytest.mark.parametrize("turn", [0, 35])
def test_diffraction_spikes_are_said_and_left(turn):
    rng, light = field(20, 60)
    y, x = np.indices(SHAPE)
    dx, dy = x - 231.3, y - 214.8
    light += 3e5 * (1 + np.hypot(dx, dy) ** 2 / 9) ** -1.5
    for k in range(4):
        t = np.radians(turn + 90 * k)
        u, v = np.maximum(dx * np.cos(t) + dy * np.sin(t), 0), dy * np.cos(t) - dx * np.sin(t)
        light += np.where(u > 0, 8e4 / (1 + (u / 8) ** 1.5) * np.exp(-u / 150) * np.exp(-0.5 * (v / 1.2) ** 2), 0)
    found, ctx = run(exposed(rng, light, saturation=6e4))
    assert not found.any() and "lines_not_masked" in ctx.flags


@pytest.mark.parametrize("saturation", [6e4, np.inf])
def test_bleeding_and_bad_columns_are_no_streaks(saturation):
    rng, light = field(21, 60)
    y, x = np.indices(SHAPE)
    light += 3e5 * (1 + np.hypot(x - 231, y - 214) ** 2 / 9) ** -1.5
    light[30:400, 230:233] += 1e5
    found, ctx = run(exposed(rng, light, saturation=saturation))
    assert not found.any() and ("lines_not_masked" in ctx.flags) == np.isinf(saturation)
    charge = np.zeros(SHAPE)
    charge[:, 333] = 3 * NOISE
    found, ctx = run(exposed(rng, light * 0, charge))
    assert not found.any() and "bad column" in ctx.flags["lines_not_masked"]


def test_limits_and_missing_variance():
    rng, light = field(9, 40)
    streaks = sum(trail(SHAPE, (-20, c), (540, c + 40), 4 * NOISE, 3.0) for c in (80, 200, 320))
    _, ctx = run(exposed(rng, light + streaks), most=2)
    assert ctx.metrics["streaks"] == 2 and "many_streaks" in ctx.flags
    with pytest.raises(InputError, match="streaks: the image has no variance"):
        run(exposed(rng, light).with_(variance=None))
