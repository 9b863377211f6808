# SPDX-License-Identifier: BSD-3-Clause
"""Target grids: of an image, of a header, north up, or the smallest one around many images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from astropy.coordinates import SkyCoord
from astropy.io import fits
from astropy.wcs import WCS, Sip
from astropy.wcs.wcsapi import BaseHighLevelWCS, BaseLowLevelWCS, SlicedLowLevelWCS
from scipy.spatial import ConvexHull, QhullError

from skydelta.errors import InputError
from skydelta.io.exposure import Exposure
from skydelta.io.fits.cards import number
from skydelta.io.fits.reader import open_file, split_extension
from skydelta.io.sky import low_level
from skydelta.io.wcs import celestial_wcs
from skydelta.kernels.core.tiles import Box
from skydelta.stages.align.chain import TABLES, SkyChain, on_sky

SAMPLES = 33
"""Points along each side of an image, and along both axes inside it, that stand for the sky it covers."""

FURTHEST = 75.0
"""Degrees from the middle of a mosaic to any of its pixels; a tangent plane grows without bound towards 90."""

WHOLE_PIXEL = 1e-4
"""Images whose pixels coincide to within this many px are on one lattice: their mosaic needs no interpolation."""

SPREAD = 100.0
"""Area of a mosaic, in areas of all its images together, beyond which one of them has a wrong WCS."""

MOST_PIXELS = 1 << 40


@dataclass(frozen=True)
class Grid:
    """A WCS and the size of an array on it.

    Attributes
    ----------
    wcs : astropy.wcs.WCS, other object of the shared interface (APE 14), or None
        None only for images that are on one grid by agreement.
    shape : (int, int)
        (H, W), px.
    label : str
        For messages.
    """

    wcs: Any
    shape: tuple[int, int]
    label: str = ""

    def exposure(self, box: Box | None = None) -> Exposure:
        """An empty image on the grid (or on a part of it) that takes no memory: what ``align`` takes as ``onto``."""
        box = box or Box(0, self.shape[0], 0, self.shape[1])
        wcs = self.wcs
        if wcs is not None and box.shape != self.shape:
            wcs = wcs.slice(box.slices) if isinstance(wcs, WCS) else SlicedLowLevelWCS(low_level(wcs), box.slices)
        plane = np.broadcast_to(np.float32(np.nan), box.shape)
        return Exposure(plane, wcs=wcs, origin=(box.y0, box.x0), id=self.label)


ONE_GRID = "; or, where both are on one grid, say so: `aligned` of the step, --aligned of difference and stack"
"""What else helps where an image has no WCS."""


def grid_of(source: Any) -> Grid:
    """The grid of an image or of a header; pixels are not read.

    Parameters
    ----------
    source : Grid, Exposure, WCS, Header, str or Path
        A WCS (any object of APE 14) says its size by ``pixel_shape``, a header by NAXIS1 and NAXIS2. A path names a
        FITS image (``FILE[EXT]``) or a text file of header cards, one a line.

    Raises
    ------
    InputError
        A file that cannot be read, no celestial WCS, or no size.
    """
    if isinstance(source, Grid):
        return source
    if isinstance(source, Exposure):
        return _checked(source.wcs, source.shape, source.id or "image")
    if isinstance(source, BaseLowLevelWCS | BaseHighLevelWCS):
        size = low_level(source).pixel_shape
        return _checked(source, None if size is None else (size[1], size[0]), "WCS")
    if isinstance(source, fits.Header):
        return _of_header(source, "header")
    if isinstance(source, str | Path):
        return _of_file(str(source))
    raise InputError(f"grid: {type(source).__name__} has no grid; an image, a WCS, a header or a path is needed")


def _checked(wcs: Any, shape: tuple[int, int] | None, label: str) -> Grid:
    if wcs is None:
        raise InputError(f"{label}: no celestial WCS; register it first (a WCS in its header)")
    if shape is None or min(shape) < 1:
        raise InputError(f"{label}: the grid has no size (NAXIS1 and NAXIS2 of a header, pixel_shape of a WCS)")
    return Grid(wcs, shape, label)


def _of_header(header: fits.Header, label: str) -> Grid:
    size = [int(number(header, f"NAXIS{i}", 0.0)) for i in (1, 2)]
    try:
        wcs, _ = celestial_wcs(header)
    except InputError as e:
        raise InputError(f"{label}: {e}") from None
    return _checked(wcs, (size[1], size[0]), label)


def _of_file(source: str) -> Grid:
    path, extension = split_extension(source)
    label = Path(path).name
    try:
        with open(path, "rb") as file:
            text = not path.endswith((".gz", ".bz2", ".xz", ".Z", ".fz")) and _is_text(file.read(2880))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as e:
        raise InputError(f"{path}: cannot be read: {getattr(e, 'strerror', None) or e}") from None
    if text:
        lines = Path(path).read_bytes().decode("ascii").splitlines()
        try:
            header = fits.Header.fromstring("\n".join(lines), sep="\n")
        except (ValueError, OSError, fits.VerifyError) as e:
            raise InputError(f"{path}: is neither FITS nor a list of cards: {e}") from None
        return _of_header(header, label)
    with open_file(path) as opened:
        hdu = opened.image(extension)
        try:
            wcs, _ = celestial_wcs(opened.keywords(hdu), opened.astropy)
        except InputError as e:
            raise opened.error(hdu, str(e)) from None
        return _checked(wcs, (hdu.shape[0], hdu.shape[1]) if len(hdu.shape) == 2 else None, label)


def _is_text(start: bytes) -> bool:
    """Lines of ASCII: a FITS header has no line ends."""
    return b"\n" in start and all(32 <= c < 127 or c in b"\r\n\t" for c in start)


def north_up(images: Iterable[Any], scale: float | None = None, centre: tuple[float, float] | None = None) -> Grid:
    """The smallest grid around images with north up and east left; arguments as of `mosaic`."""
    return mosaic(images, scale=scale, angle=0.0, centre=centre)


def mosaic(
    images: Iterable[Any],
    *,
    scale: float | None = None,
    angle: float | None = None,
    centre: tuple[float, float] | None = None,
) -> Grid:
    """The smallest tangent-plane grid around images.

    Images whose pixels coincide up to whole-pixel shifts keep their own lattice, if nothing else is asked for.
    Otherwise the position angle is that of the smallest rectangle around all images in the tangent plane (rotating
    calipers: one of its sides lies along the convex hull; Freeman & Shapira 1975), turned by whole right angles to be
    within 45 degrees of north; the tangent point is its middle.

    Parameters
    ----------
    images : iterable
        Whatever `grid_of` takes.
    scale : float, optional
        Side of a pixel, arcsec; the smallest of the images' pixels when left out.
    angle : float, optional
        Position angle of the y axis, degrees east of north.
    centre : (float, float), optional
        ICRS right ascension and declination of the tangent point, degrees.

    Returns
    -------
    Grid
        Gnomonic (TAN), ICRS, east to the left of north; it covers every pixel of every image.

    Raises
    ------
    InputError
        No images, one that has no celestial WCS, images too far apart for a tangent plane or for one mosaic, or a size
        or scale that makes no grid.
    """
    grids = [grid_of(image) for image in images]
    if not grids:
        raise InputError("grid: no images; at least one is needed")
    if scale is not None and not (np.isfinite(scale) and scale > 0):
        raise InputError(f"grid: scale = {scale} arcsec; a positive number is needed")
    if scale is None and angle is None and centre is None:
        common = _common_lattice(grids)
        if common is not None:
            return common
    sky = np.concatenate([_covered(g) for g in grids], axis=1)
    step = np.radians(scale / 3600) if scale is not None else min(_pixel_side(g) for g in grids)
    middle = _unit(*centre) if centre is not None else _direction(sky.mean(axis=1))
    turn = 0.0 if angle is None else np.radians(angle)
    for _ in range(1 if centre is not None else 4):  # the rectangle depends, ever less, on the plane it is sought in
        plane = _gnomonic(sky, middle)
        if angle is None:
            turn = _best_angle(plane)
        axes = np.array([[-np.cos(turn), np.sin(turn)], [np.sin(turn), np.cos(turn)]])  # columns: x and y on the sky
        at = axes @ plane
        low, high = at.min(axis=1), at.max(axis=1)
        if centre is None:
            middle = _deprojected(axes.T @ ((low + high) / 2), middle)
    found = _plane(sky, middle, axes, step)
    covered = sum(g.shape[0] * g.shape[1] * _pixel_side(g) ** 2 for g in grids) / step**2
    h, w = found.shape
    if h * w > SPREAD * covered:
        raise InputError(
            f"grid: {w} x {h} px are needed around {len(grids)} images that cover {covered / (h * w):.2%} of them; "
            "a WCS is wrong, or give the grid"
        )
    return found


def _plane(sky: np.ndarray, middle: np.ndarray, axes: np.ndarray, step: float) -> Grid:
    """The tangent plane at ``middle`` whose array just holds all directions (3, n)."""
    lon, lat = np.degrees(np.arctan2(middle[1], middle[0])) % 360, np.degrees(np.arcsin(middle[2]))
    middle = _unit(lon, lat)
    at = axes @ _gnomonic(sky, middle) / step
    low = at.min(axis=1)
    size = np.maximum(np.ceil(at.max(axis=1) - low - 1e-3), 1)
    if not size.prod() <= MOST_PIXELS:
        raise InputError(f"grid: {size[0]:.0f} x {size[1]:.0f} px are needed around the images; give a larger scale")
    spare = (size - (at.max(axis=1) - low)) / 2
    wcs = WCS(naxis=2)
    wcs.wcs.ctype = "RA---TAN", "DEC--TAN"
    wcs.wcs.cunit = "deg", "deg"
    wcs.wcs.radesys = "ICRS"
    wcs.wcs.crval = lon, lat
    wcs.wcs.crpix = 0.5 - low + spare
    wcs.wcs.cd = np.degrees(step) * axes.T
    wcs.pixel_shape = int(size[0]), int(size[1])
    wcs.wcs.set()
    return Grid(wcs, (int(size[1]), int(size[0])), "mosaic")


def _directions(grid: Grid, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """ICRS unit vectors (3, n) of pixels, NaN off the sky."""
    frame = on_sky(grid.wcs, grid.label)
    lon, lat = SkyChain(grid.wcs, grid.wcs).target.world(x, y)
    ok = np.isfinite(lon) & np.isfinite(lat)
    sky = SkyCoord(lon[ok], lat[ok], unit="deg", frame=frame).icrs.spherical
    out = np.full((3, ok.size), np.nan)
    out[:, ok] = _unit(sky.lon.deg, sky.lat.deg)
    return out


def _covered(grid: Grid) -> np.ndarray:
    """Unit vectors (3, n) of points along the border of an image and inside it; those off the sky are left out."""
    h, w = grid.shape
    x, y = np.meshgrid(np.linspace(-0.5, w - 0.5, SAMPLES), np.linspace(-0.5, h - 0.5, SAMPLES))
    sky = _directions(grid, x.ravel(), y.ravel())
    sky = sky[:, np.isfinite(sky).all(axis=0)]
    if not sky.size:
        raise InputError(f"{grid.label}: no pixel lies on the sky")
    return sky


def _pixel_side(grid: Grid) -> float:
    """Square root of a pixel's area in the middle of an image (or where it is on the sky), radians."""
    h, w = grid.shape
    x, y = (a.ravel() for a in np.meshgrid(np.linspace(0, w - 1, 5), np.linspace(0, h - 1, 5)))
    at, right, up = (_directions(grid, x + dx, y + dy) for dx, dy in ((0, 0), (0.5, 0), (0, 0.5)))
    area = 4 * np.linalg.norm(np.cross(right - at, up - at, axis=0), axis=0)
    near = np.argsort(np.hypot(x - (w - 1) / 2, y - (h - 1) / 2), kind="stable")
    known = near[np.isfinite(area[near]) & (area[near] > 0)]
    if not known.size:
        raise InputError(f"{grid.label}: its pixels have no area on the sky")
    return float(np.sqrt(area[known[0]]))


def _gnomonic(sky: np.ndarray, middle: np.ndarray) -> np.ndarray:
    """Tangent-plane coordinates (2, n) of directions, radians towards east and north."""
    up = middle @ sky
    if up.min() < np.cos(np.radians(FURTHEST)):
        away = np.degrees(np.arccos(np.clip(up.min(), -1, 1)))
        raise InputError(
            f"grid: the images reach {away:.0f} degrees from their middle; a tangent plane holds up to {FURTHEST:.0f}: "
            "name a grid (an image or a header of another projection)"
        )
    east, north = _east_north(middle)
    return np.stack([east @ sky, north @ sky]) / up


def _deprojected(at: np.ndarray, middle: np.ndarray) -> np.ndarray:
    east, north = _east_north(middle)
    return _direction(middle + at[0] * east + at[1] * north)


def _east_north(middle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    lon = np.arctan2(middle[1], middle[0])
    east = np.array([-np.sin(lon), np.cos(lon), 0.0])
    return east, np.cross(middle, east)


def _best_angle(plane: np.ndarray) -> float:
    """Position angle (radians, -pi/4 to pi/4) of the smallest rectangle around points (2, n) of a tangent plane."""
    try:
        hull = plane[:, ConvexHull(plane.T).vertices]
    except QhullError:  # all on a line
        hull = plane
    side = np.diff(np.concatenate([hull, hull[:, :1]], axis=1), axis=1)
    side = side[:, (side != 0).any(axis=0)]
    turns = np.arctan2(side[0], side[1])
    turns = np.concatenate([[0.0], (turns + np.pi / 4) % (np.pi / 2) - np.pi / 4])
    c, s = np.cos(turns)[:, None], np.sin(turns)[:, None]
    area = np.ptp(-c * hull[0] + s * hull[1], axis=1) * np.ptp(s * hull[0] + c * hull[1], axis=1)
    good = np.flatnonzero(area <= area.min() * (1 + 1e-9))
    return float(turns[good[np.argmin(np.abs(turns[good]))]])


def _common_lattice(grids: Sequence[Grid]) -> Grid | None:
    """The union of images whose pixels coincide up to whole-pixel shifts, on the lattice of the first; else None."""
    first = grids[0]
    if all(g.wcs is first.wcs and g.shape == first.shape for g in grids):
        return first
    if not isinstance(first.wcs, WCS) or any(getattr(first.wcs, t) is not None for t in TABLES):
        return None
    boxes = [Box(0, first.shape[0], 0, first.shape[1])]
    for grid in grids[1:]:
        shift = _whole_shift(first, grid)
        if shift is None:
            return None
        boxes.append(Box(0, grid.shape[0], 0, grid.shape[1]).shift(shift[1], shift[0]))
    y0, y1 = min(b.y0 for b in boxes), max(b.y1 for b in boxes)
    x0, x1 = min(b.x0 for b in boxes), max(b.x1 for b in boxes)
    return Grid(_moved(first.wcs, x0, y0, x1 - x0, y1 - y0), (y1 - y0, x1 - x0), "mosaic")


def _whole_shift(first: Grid, other: Grid) -> tuple[int, int] | None:
    """(x, y) to add to pixels of the other to get those of the first, if whole numbers do everywhere."""
    h, w = other.shape
    x, y = (a.ravel() for a in np.meshgrid(np.linspace(0, w - 1, 5), np.linspace(0, h - 1, 5)))
    at = np.stack(SkyChain(first.wcs, other.wcs)(x, y)) - np.stack([x, y])
    if not np.isfinite(at).all():
        return None
    shift = np.rint(at[:, 0])
    if np.abs(at - shift[:, None]).max() > WHOLE_PIXEL:
        return None
    return int(shift[0]), int(shift[1])


def _moved(wcs: WCS, x0: int, y0: int, width: int, height: int) -> WCS:
    """The same WCS with its pixel (x0, y0) as the first of an array of this size."""
    out = wcs.deepcopy()
    out.wcs.crpix = np.subtract(wcs.wcs.crpix, (x0, y0))
    if wcs.sip is not None:
        sip = wcs.sip
        out.sip = Sip(sip.a, sip.b, sip.ap, sip.bp, np.subtract(sip.crpix, (x0, y0)))
    out.pixel_shape = width, height
    out.wcs.set()
    return out


def _direction(v: np.ndarray) -> np.ndarray:
    size = np.linalg.norm(v)
    if size < 1e-6:
        raise InputError("grid: the images lie all around the sky and have no middle; give a grid")
    return v / size


def _unit(lon: Any, lat: Any) -> np.ndarray:
    a, d = np.radians(lon), np.radians(lat)
    return np.stack([np.cos(d) * np.cos(a), np.cos(d) * np.sin(a), np.sin(d)])
