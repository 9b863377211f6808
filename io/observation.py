# SPDX-License-Identifier: BSD-3-Clause
"""When and where an exposure was taken, for what looks over many of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from astropy.io import fits
from astropy.time import Time

from skydelta.errors import InputError
from skydelta.io.exposure import Exposure
from skydelta.io.sky import icrs_positions

MJD = ("MJD-AVG", "MJD-OBS", "MJD_OBS", "MJD-BEG")
DATE = ("DATE-AVG", "DATE-OBS", "DATE-BEG")
CLOCK = ("TIME-OBS", "UTC-OBS", "UT", "UTC")
"""Cards with the time, in the order they are asked; the clock where DATE-OBS holds a day only (FITS 4.0, section 9)."""


def mjd_of(header: fits.Header) -> float:
    """Modified Julian date of an exposure, in the time scale of its header; NaN where that says nothing.

    The middle of the exposure where the header has it (``MJD-AVG``, ``DATE-AVG``), else what ``MJD-OBS`` or
    ``DATE-OBS`` stand for there, mostly its beginning.
    """
    for key in MJD:
        value = header.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
            return float(value)
    for key in DATE:
        day = header.get(key)
        if not isinstance(day, str) or not day.strip():
            continue
        texts = [day.strip()]
        if "T" not in day:
            texts = [f"{day.strip()}T{c.strip()}" for k in CLOCK if isinstance(c := header.get(k), str)] + texts
        for text in texts:
            try:
                return float(Time(text, format="isot" if "T" in text else "iso").mjd)
            except ValueError:
                continue
    return math.nan


def observed(exposure: Exposure) -> dict[str, Any]:
    """Time and place of an exposure, JSON-able, without what is not known.

    Returns
    -------
    dict
        ``mjd``; ``sky_centre_deg`` [ra, dec]; ``sky_corners_deg`` four of them around the image, outer edges of the
        corner pixels; ``pixel_scale_arcsec``, square root of the area of the central pixel. ICRS.
    """
    out: dict[str, Any] = {}
    mjd = mjd_of(exposure.header)
    if math.isfinite(mjd):
        out["mjd"] = mjd
    if exposure.wcs is None:
        return out
    h, w = exposure.shape
    cx, cy = (w - 1) / 2, (h - 1) / 2
    x = np.array([-0.5, w - 0.5, w - 0.5, -0.5, cx, cx + 0.5, cx - 0.5, cx, cx])
    y = np.array([-0.5, -0.5, h - 0.5, h - 0.5, cy, cy, cy, cy + 0.5, cy - 0.5])
    try:
        ra, dec = icrs_positions(exposure.wcs, x, y)
    except InputError:  # axes that are not on the sky
        return out
    if np.isfinite([ra[4], dec[4]]).all():
        out["sky_centre_deg"] = [float(ra[4]), float(dec[4])]
    if np.isfinite([ra[:4], dec[:4]]).all():
        out["sky_corners_deg"] = [[float(a), float(d)] for a, d in zip(ra[:4], dec[:4], strict=True)]
    v = unit_vectors(ra, dec)
    area = float(np.linalg.norm(np.cross(v[5] - v[6], v[7] - v[8])))
    if math.isfinite(area) and area > 0:
        out["pixel_scale_arcsec"] = float(np.degrees(math.sqrt(area)) * 3600)
    return out


def unit_vectors(ra: np.ndarray, dec: np.ndarray) -> np.ndarray:
    """Directions of positions on the sky: (n,) and (n,) degrees to float64 (n, 3)."""
    a, d = np.radians(np.asarray(ra, float)), np.radians(np.asarray(dec, float))
    return np.stack([np.cos(d) * np.cos(a), np.cos(d) * np.sin(a), np.sin(d)], axis=-1)


def sky_angles(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ra in [0, 360) and dec, degrees, of directions (n, 3) of any length; the inverse of `unit_vectors`."""
    ra = np.degrees(np.arctan2(v[..., 1], v[..., 0])) % 360.0
    return np.where(ra >= 360.0, 0.0, ra), np.degrees(np.arctan2(v[..., 2], np.hypot(v[..., 0], v[..., 1])))
