# SPDX-License-Identifier: BSD-3-Clause
"""A sky of Gaussian stars drawn analytically on two grids: a perfect interpolator turns one into the other."""

from dataclasses import dataclass

import numpy as np
from astropy.wcs import WCS, Sip
from scipy import ndimage

from skydelta.io.exposure import Exposure

PIXEL = 0.3 / 3600  # degrees
FWHM = 3.5  # source px
BOX = np.arange(-12, 13)  # px around a star that its flux is summed over
SPACING = 30  # source px between stars: a box holds one star


def plane(shape, turn=0.0, scale=1.0, shift=(0.0, 0.0), mirrored=False, sky=(37.3, -11.0), kind="TAN"):
    """WCS of a plane turned by degrees; ``sky`` (degrees) is at the middle of the array plus ``shift`` (px)."""
    w = WCS(naxis=2)
    w.wcs.ctype = f"RA---{kind}", f"DEC--{kind}"
    w.wcs.crval = sky
    w.wcs.crpix = shape[1] / 2 + 0.5 + shift[0], shape[0] / 2 + 0.5 + shift[1]
    c, s = np.cos(np.radians(turn)), np.sin(np.radians(turn))
    w.wcs.cd = PIXEL * scale * np.array([[1 if mirrored else -1, 0], [0, 1]]) @ [[c, -s], [s, c]]
    w.wcs.cunit = "deg", "deg"
    w.pixel_shape = shape[::-1]
    return w


def with_sip(w, bend=3.0):
    """The plane with a cubic distortion of ``bend`` px at the middle of its sides, without inverse coefficients."""
    h = max(w.pixel_shape) / 2
    a, b = np.zeros((4, 4)), np.zeros((4, 4))
    a[2, 0], a[0, 2], a[3, 0], a[1, 2] = bend / h**2, -0.4 * bend / h**2, 0.3 * bend / h**3, 0.3 * bend / h**3
    b[0, 2], b[1, 1], b[0, 3], b[2, 1] = -0.7 * bend / h**2, 0.5 * bend / h**2, 0.3 * bend / h**3, 0.3 * bend / h**3
    w.sip = Sip(a, b, None, None, w.wcs.crpix)
    w.wcs.ctype = "RA---TAN-SIP", "DEC--TAN-SIP"
    w.wcs.set()
    return w


def tpv(shape, bend=3.0, **keywords):
    """A TPV plane distorted by about ``bend`` px at the middle of its sides."""
    w = plane(shape, kind="TPV", **keywords)
    half = max(shape) / 2 * PIXEL
    square, cube = bend * PIXEL / half**2, 0.3 * bend * PIXEL / half**3
    first = {1: 1.0, 4: square, 6: -0.4 * square, 7: cube, 9: cube}
    second = {1: 1.0, 4: -0.7 * square, 5: 0.5 * square, 7: cube, 9: cube}
    w.wcs.set_pv([(i, k, v) for i, terms in ((1, first), (2, second)) for k, v in terms.items()])
    w.wcs.set()
    return w


@dataclass(frozen=True)
class Scene:
    """``source`` (float32 image, unit variance, no mask) and the truth (float64) on the grid of ``target``."""

    source: Exposure
    target: Exposure
    stars: np.ndarray  # (n, 2) x, y on the target


def scene(case, shape=(360, 400), target_shape=None, seed=3):
    """Cases: tan, sip, tpv, mirrored, coarse (target pixels 1.4 times larger)."""
    target_shape = target_shape or shape
    source = {"sip": lambda: with_sip(plane(shape)), "tpv": lambda: tpv(shape)}.get(case, lambda: plane(shape))()
    turn, scale = {"tan": (1.3, 1.0), "coarse": (0.5, 1.4)}.get(case, (0.4, 1.0))
    target = plane(target_shape, turn, scale, (0.31, -0.27), mirrored=case == "mirrored")
    rng = np.random.default_rng(seed)
    gx, gy = np.meshgrid(np.arange(SPACING, shape[1] - 20, SPACING), np.arange(SPACING, shape[0] - 20, SPACING))
    at = np.stack([gx, gy], -1).reshape(-1, 2) + rng.uniform(-2, 2, (gx.size, 2))
    peak = rng.uniform(0.1, 1.0, len(at))
    sky = np.stack(source.all_pix2world(*at.T, 0))
    image = draw(source, shape, sky, peak).astype(np.float32)
    truth = draw(target, target_shape, sky, peak)
    stars = np.stack(target.all_world2pix(*sky, 0), -1)
    return Scene(Exposure(image, np.ones_like(image), wcs=source), Exposure(truth, wcs=target), stars)


def draw(w, shape, sky, peak):
    """float64 image of stars with these peaks at the pixel centres of a grid."""
    sigma = FWHM / np.sqrt(8 * np.log(2)) * np.radians(PIXEL)
    image = np.zeros(shape)
    x, y = w.all_world2pix(*sky, 0)
    for centre, px, py, top in zip(sphere(*sky).T, x, y, peak, strict=True):
        xs, ys = np.arange(int(px) - 18, int(px) + 20), np.arange(int(py) - 18, int(py) + 20)
        xs, ys = xs[(xs >= 0) & (xs < shape[1])], ys[(ys >= 0) & (ys < shape[0])]
        if xs.size and ys.size:
            gx, gy = np.meshgrid(xs, ys)
            away = sphere(*w.all_pix2world(gx, gy, 0)) - centre[:, None, None]
            image[gy, gx] += top * np.exp(-0.5 * (away**2).sum(axis=0) / sigma**2)
    return image


def sphere(ra, dec):
    """Unit vectors (3, ...) of angles in degrees."""
    a, d = np.radians(ra), np.radians(dec)
    return np.array([np.cos(d) * np.cos(a), np.cos(d) * np.sin(a), np.sin(d)])


def exact_positions(source, target, shape):
    """Source x, y (2, H, W) of every target pixel, by astropy pixel by pixel."""
    y, x = np.indices(shape, float)
    sky = target.all_pix2world(x, y, 0)
    return np.stack(source.all_world2pix(*sky, 0, tolerance=1e-9, maxiter=60, quiet=True))


def exact_spline(s):
    """The float64 cubic spline of the source at the exact positions, NaN outside the source."""
    q = exact_positions(s.source.wcs, s.target.wcs, s.target.shape)
    out = ndimage.map_coordinates(s.source.image.astype(float), q[::-1], order=3, mode="mirror")
    h, w = s.source.shape
    out[(q < -0.5).any(axis=0) | (q[0] > w - 0.5) | (q[1] > h - 0.5)] = np.nan
    return out


def star_figures(image, s):
    """rms error on pixels above 1 % of the brightest peak, and 99th percentile of the relative flux errors."""
    truth = s.target.image
    rim = np.zeros(truth.shape, bool)
    rim[20:-20, 20:-20] = True
    on = rim & (truth > 0.01) & np.isfinite(image)
    rms = float(np.sqrt(((image - truth)[on] ** 2).mean()))
    x, y = np.rint(s.stars.T).astype(int)
    ok = (x > 40) & (x < truth.shape[1] - 40) & (y > 40) & (y < truth.shape[0] - 40)
    boxes = y[ok][:, None, None] + BOX[:, None], x[ok][:, None, None] + BOX
    ratio = image[boxes].sum(axis=(1, 2), dtype=float) / truth[boxes].sum(axis=(1, 2)) - 1
    return rms, float(np.percentile(np.abs(ratio[np.isfinite(ratio)]), 99))
