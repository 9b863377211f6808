# SPDX-License-Identifier: BSD-3-Clause
"""The stage: planes by name, copies, overlap, units, messages."""

import numpy as np
import pytest
from astropy import units as u
from astropy.wcs import WCS
from scipy import ndimage
from support_align import plane, scene

from skydelta.errors import ConfigError, InputError
from skydelta.io.exposure import Exposure
from skydelta.io.field import Domain
from skydelta.io.planes import CORE_PLANES, MaskPlanes
from skydelta.io.psf import PixelPsf
from skydelta.kernels.backend import CPU
from skydelta.kernels.core.tiles import Box
from skydelta.stages.align import Align
from skydelta.stages.base import Context

SHAPE = (120, 140)


def exposure(rng, wcs, shape=SHAPE, **more):
    image = rng.normal(100, 3, shape).astype(np.float32)
    return Exposure(image, np.full(shape, 9.0, np.float32), np.zeros(shape, np.int32), wcs=wcs, **more)


def moved(dx, dy, shape=SHAPE):
    """The plane whose pixel (x, y) is pixel (x + dx, y + dy) of the plain one."""
    w = plane(shape)
    w.wcs.crpix = np.subtract(w.wcs.crpix, (dx, dy))
    return w


def run(image, onto, **config):
    ctx = Context(CPU)
    return Align(**config).run(ctx, image=image, onto=onto)["aligned"], ctx


def test_same_grid_costs_nothing(rng):
    image, onto = exposure(rng, plane(SHAPE)), exposure(rng, plane(SHAPE))
    out, ctx = run(image, onto)
    assert out.image is image.image and out.variance is image.variance
    assert ctx.metrics["method"] == "copy" and ctx.metrics["shift_px"] == [0, 0]
    assert ctx.metrics["overlap_fraction"] == 1.0
    assert out.wcs is onto.wcs


def test_whole_pixel_shift_is_copied_bit_by_bit(rng):
    stamps = np.stack([np.eye(5) + 1, np.tri(5) / 40, np.tri(5).T / 40])
    image = exposure(rng, plane(SHAPE), psf=PixelPsf(stamps, 1, Domain.of(SHAPE)))
    image.image[30, 40] = np.nan
    image.mask[30, 40] = image.planes.bit("CR")
    out, ctx = run(image, exposure(rng, moved(7, -4)))
    assert ctx.metrics["shift_px"] == [7, -4]
    assert out.image[4:, :-7].tobytes() == image.image[:-4, 7:].tobytes()
    assert out.variance[4:, :-7].tobytes() == image.variance[:-4, 7:].tobytes()
    lost = np.where(np.isnan(image.image), out.planes.bit("NO_DATA"), 0)  # a pixel without a value, whoever says so
    assert (out.mask[4:, :-7] == (image.mask | lost)[:-4, 7:]).all() and lost.any()
    outside = np.ones(SHAPE, bool)
    outside[4:, :-7] = False
    assert np.isnan(out.image[outside]).all()
    assert (out.mask[outside] == out.planes.bit("NO_DATA")).all()
    np.testing.assert_allclose(out.psf.at(20, 30), image.psf.at(27, 26), rtol=1e-12)
    assert ctx.metrics["overlap_fraction"] == pytest.approx(116 * 133 / (120 * 140))


def test_half_pixel_shift_is_interpolated(rng):
    out, ctx = run(exposure(rng, plane(SHAPE)), exposure(rng, moved(0.5, 0.0)))
    assert ctx.metrics["method"] == "bspline3"
    assert out.psf is None
    response = ndimage.shift(np.eye(1, 61, 30)[0], 0.5, order=3, mode="mirror")
    assert out.variance[60, 60] == pytest.approx(9.0 * (response**2).sum(), rel=1e-4)


def test_planes_are_merged_by_name(rng):
    """The same name on other bits, and a name the target does not know."""
    ours = MaskPlanes.of({**{n: i + 3 for i, n in enumerate(CORE_PLANES)}, "GHOST": 0})
    image = exposure(rng, plane(SHAPE), planes=ours)
    image.mask[50, 60] = ours.bit("SAT", "GHOST")
    onto = exposure(rng, moved(3, 2))
    for target in (onto, onto.with_(wcs=moved(3.4, 2.4))):
        out, _ = run(image, target)
        assert all(out.planes[n] == onto.planes[n] for n in onto.planes)
        assert (out.mask[48, 57] & out.planes.bit("SAT", "GHOST")) == out.planes.bit("SAT", "GHOST")


@pytest.mark.parametrize("dx", [14.3, 70.4, 126.6])
def test_partial_overlap(dx, rng):
    image = exposure(rng, plane(SHAPE))
    out, ctx = run(image, exposure(rng, moved(dx, 0.2)))
    part = 1 - dx / SHAPE[1]
    assert ("partial_overlap" in ctx.flags) == (part < 0.89)
    assert ctx.metrics["overlap_fraction"] == pytest.approx(part, abs=0.01)
    outside = np.isnan(out.image)
    assert outside.mean() == pytest.approx(1 - part, abs=0.01)
    assert (out.mask[outside] & out.planes.bit("NO_DATA")).all()
    assert (out.variance[~outside] > 0).all()
    good = out.good()
    assert good.mean() > part - 0.09
    assert np.abs(out.image[good].mean() - 100) < 0.5


@pytest.mark.parametrize("dx", [200.0, 200.4, 1e5])
def test_no_overlap_stops_with_numbers(dx, rng):
    with pytest.raises(InputError, match=r"do not overlap: the target grid of 140 x 120 px lies .* image of 140 x 120"):
        run(exposure(rng, plane(SHAPE)), exposure(rng, moved(dx, 0.0)))


def test_other_side_of_the_sky_does_not_overlap(rng):
    with pytest.raises(InputError, match="do not overlap"):
        run(exposure(rng, plane(SHAPE)), exposure(rng, plane(SHAPE, sky=(217.3, 11.0))))


def test_shapes_may_differ_and_be_odd(rng):
    image = exposure(rng, plane((511, 1023)), (511, 1023))
    out, ctx = run(image, exposure(rng, plane((333, 777), 20.0), (333, 777)))
    assert out.shape == (333, 777)
    assert ctx.metrics["overlap_fraction"] > 0.9


def test_without_wcs(rng):
    image, onto = exposure(rng, None, id="a"), exposure(rng, None)
    with pytest.raises(InputError, match=r"image a has no celestial WCS; register it first .*--aligned of difference"):
        run(image, onto)
    out, ctx = run(image, onto, aligned=True)
    assert out.image is image.image and ctx.metrics["method"] == "copy"
    with pytest.raises(InputError, match=r"aligned is set, but image has shape \(120, 140\) and onto \(60, 60\)"):
        run(image, exposure(rng, None, (60, 60)), aligned=True)


def test_axes_without_sky_are_no_wcs(rng):
    with pytest.raises(InputError, match="onto has no celestial WCS"):
        run(exposure(rng, plane(SHAPE)), exposure(rng, WCS(naxis=2)))


def test_planes_may_be_missing(rng):
    image = Exposure(rng.normal(0, 1, SHAPE).astype(np.float32), wcs=plane(SHAPE))
    out, _ = run(image, exposure(rng, moved(0.4, 0.2)))
    assert out.variance is None
    assert out.mask is not None
    same, _ = run(image, exposure(rng, plane(SHAPE)))
    assert same.variance is None


@pytest.mark.parametrize(
    ("unit", "conserve", "kept"),
    [
        (u.adu, "auto", "flux"),
        (u.electron, "auto", "flux"),
        (u.nJy, "auto", "flux"),
        (u.MJy / u.sr, "auto", "brightness"),
        (None, "auto", "brightness"),
        (u.adu, "brightness", "brightness"),
        (None, "flux", "flux"),
    ],
)
def test_what_is_kept_follows_the_unit(unit, conserve, kept, rng):
    image = exposure(rng, plane(SHAPE), unit=unit)
    out, ctx = run(image, exposure(rng, plane(SHAPE, scale=0.8)), conserve=conserve)
    assert ctx.metrics["conserved"] == kept
    level = 64.0 if kept == "flux" else 100.0
    assert np.nanmedian(out.image) == pytest.approx(level, rel=0.01)
    assert out.unit == unit


def test_pixels_of_one_size_need_no_factor(rng):
    image = exposure(rng, plane(SHAPE), unit=u.adu)
    _, ctx = run(image, exposure(rng, plane(SHAPE, 3.0)))
    assert ctx.metrics["conserved"] == "brightness"
    assert ctx.metrics["pixel_area_ratio"] == pytest.approx([1, 1], abs=1e-6)


def test_figures_of_the_map_are_recorded():
    s = scene("sip", (200, 220))
    _, ctx = run(s.source, s.target)
    assert 0 < ctx.metrics["map_error_px"] < 1e-4
    assert ctx.metrics["map_spacing_px"] in (8, 16, 32)
    assert ctx.metrics["map_exact_fraction"] == 0


def test_config_errors_name_the_key():
    with pytest.raises(ConfigError, match=r"align\.method: 'cubic' is not one of"):
        Align(method="cubic")
    with pytest.raises(ConfigError, match=r"align.tolerance: 1 is above 0\.1"):
        Align(tolerance=1)


def test_sections_and_other_types_are_taken(rng):
    """Views are not contiguous, and a reader may keep the file's types."""
    image = exposure(rng, plane(SHAPE))
    part = image.section(Box(10, 90, 20, 130))
    onto = exposure(rng, moved(0.3, 0.2)).section(Box(30, 80, 40, 100))
    want, _ = run(image, onto)
    got, _ = run(part, onto)
    inner = np.s_[12:-12, 12:-12]
    np.testing.assert_allclose(got.image[inner], want.image[inner], atol=1e-4)
    native, _ = run(image.with_(image=image.image.astype(">f8")), onto)
    np.testing.assert_array_equal(native.image, want.image)


def test_same_input_same_bytes(rng):
    image, onto = exposure(rng, plane(SHAPE)), exposure(rng, plane(SHAPE, 11.0))
    a, b = run(image, onto)[0], run(image, onto)[0]
    for name in ("image", "variance", "mask"):
        assert getattr(a, name).tobytes() == getattr(b, name).tobytes()
