# SPDX-License-Identifier: BSD-3-Clause
"""What the axes of a WCS are: the sky frame of FITS cards, and of any object of the shared interface (APE 14)."""

from __future__ import annotations

from typing import Any

import numpy as np
from astropy import units as u
from astropy.coordinates import (
    ICRS,
    BarycentricMeanEcliptic,
    BaseCoordinateFrame,
    Galactic,
    SkyCoord,
    Supergalactic,
)
from astropy.time import Time
from astropy.wcs import WCS
from astropy.wcs.utils import wcs_to_celestial_frame
from astropy.wcs.wcsapi import BaseHighLevelWCS, BaseLowLevelWCS

from skydelta.errors import InputError


def low_level(wcs: Any, name: str = "WCS") -> BaseLowLevelWCS:
    """The object that maps numbers to numbers; of a high-level wrapper the one inside.

    Raises
    ------
    InputError
        Not an object of the interface.
    """
    if isinstance(wcs, BaseLowLevelWCS):
        return wcs
    if isinstance(wcs, BaseHighLevelWCS):
        return wcs.low_level_wcs
    raise InputError(
        f"{name}: a {type(wcs).__name__} is no WCS; an astropy.wcs.WCS or an object of its shared interface (APE 14) "
        "is needed"
    )


def fits_frame(wcs: WCS) -> BaseCoordinateFrame | None:
    """The sky frame of FITS cards, decided by CTYPE first; None when there is none that can be transformed.

    astropy's own `wcs_to_celestial_frame` looks at RADESYS first and takes galactic, ecliptic or helioecliptic
    longitudes for right ascensions when the card is there, or when wcslib has filled it in. RADESYS and EQUINOX of
    ecliptic axes name the equator that the mean ecliptic belongs to (Calabretta & Greisen 2002, section 3.1); FK5 and
    ICRS, 0.02 arcsec apart, are one there, and FK4 has no transformation.
    """
    w = wcs.wcs
    if w.lng < 0 or w.lat < 0:
        return None
    axes = w.ctype[w.lng][:4], w.ctype[w.lat][:4]
    if axes == ("RA--", "DEC-"):
        if w.radesys == "ICRS":  # found out in no time
            return ICRS()
        try:
            return wcs_to_celestial_frame(wcs)
        except ValueError:
            return None
    if axes == ("GLON", "GLAT"):
        return Galactic()
    if axes == ("SLON", "SLAT"):
        return Supergalactic()
    if axes == ("ELON", "ELAT") and w.radesys in ("", "ICRS", "FK5"):
        of_date = w.radesys == "FK5" and np.isfinite(w.equinox)
        return BarycentricMeanEcliptic(equinox=Time(w.equinox if of_date else 2000.0, format="jyear"))
    return None


def celestial_axes(wcs: BaseLowLevelWCS) -> tuple[BaseCoordinateFrame, int, int] | None:
    """Frame and numbers of the world axes of longitude and latitude, or None when two axes are not on the sky."""
    if isinstance(wcs, WCS):
        frame = fits_frame(wcs)
        return None if frame is None else (frame, wcs.wcs.lng, wcs.wcs.lat)
    classes = wcs.world_axis_object_classes
    found: dict[int, int] = {}
    frame = None
    for axis, (key, place, _) in enumerate(wcs.world_axis_object_components):
        kind, _, keywords, *_ = classes[key]
        if _class_name(kind) == "SkyCoord" and isinstance(keywords.get("frame"), BaseCoordinateFrame):
            frame = keywords["frame"]
            found[place if isinstance(place, int) else 0 if place in ("ra", "lon", "l") else 1] = axis
    return (frame, found[0], found[1]) if frame is not None and found.keys() == {0, 1} else None


def _class_name(kind: Any) -> str:
    """Last part of the name of a class, which may be given as text (serialised objects)."""
    return kind.rpartition(".")[2] if isinstance(kind, str) else kind.__name__


def sky_type(wcs: Any) -> str:
    """The axes of a WCS in words: CTYPE of FITS cards, else the physical types of the world axes."""
    low = low_level(wcs)
    if isinstance(low, WCS):
        return ", ".join(low.wcs.ctype)
    return ", ".join(str(t) for t in low.world_axis_physical_types)


def _on_sky(wcs: Any) -> tuple[Any, Any, int, int]:
    """Low-level WCS, frame, and which world axes are longitude and latitude, for ICRS positions."""
    low = low_level(wcs)
    axes = celestial_axes(low)
    if axes is None:
        raise InputError(f"axes {sky_type(low)} have no frame that ICRS positions could be computed from")
    return low, *axes


def icrs_positions(wcs: Any, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ra, dec (degrees, ICRS) of 0-based pixel positions of a two-dimensional WCS; NaN off the sky.

    Raises
    ------
    InputError
        Its axes have no frame on the sky.
    """
    low, frame, lon, lat = _on_sky(wcs)
    world = [
        np.asarray(v, float) * u.Unit(unit).to(u.deg)
        for v, unit in zip(low.pixel_to_world_values(x, y), low.world_axis_units, strict=True)
    ]
    if frame.name == "icrs":  # a coordinate object takes a millisecond to make
        return world[lon] % 360.0, world[lat]
    icrs = SkyCoord(world[lon], world[lat], unit="deg", frame=frame).icrs
    return np.asarray(icrs.ra.deg, float), np.asarray(icrs.dec.deg, float)


def icrs_pixels(wcs: Any, ra: np.ndarray, dec: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """0-based pixel positions of ra, dec (degrees, ICRS) in a two-dimensional WCS; NaN where it has none.

    The inverse of `icrs_positions`. An inverse distortion that ends elsewhere, which it may do far outside the image,
    is NaN too: the position found must map back to within a hundredth of an arcsecond.

    Raises
    ------
    InputError
        Its axes have no frame on the sky.
    """
    low, frame, lon, lat = _on_sky(wcs)
    world: list[np.ndarray] = [np.empty(0), np.empty(0)]
    world[lon], world[lat] = np.asarray(ra, float), np.asarray(dec, float)
    if frame.name != "icrs":
        there = SkyCoord(world[lon], world[lat], unit="deg", frame="icrs").transform_to(frame).spherical
        world[lon], world[lat] = there.lon.deg, there.lat.deg
    values = [(v * u.deg).to_value(u.Unit(unit)) for v, unit in zip(world, low.world_axis_units, strict=True)]
    with np.errstate(all="ignore"):
        if isinstance(low, WCS):
            x, y = low.all_world2pix(*values, 0, quiet=True)
        else:
            x, y = (np.asarray(v, float) for v in low.world_to_pixel_values(*values))
        back_ra, back_dec = icrs_positions(wcs, x, y)
        across = (back_ra - ra + 180) % 360 - 180
        off = np.hypot(across * np.cos(np.radians(dec)), back_dec - dec)
    found = off < 0.01 / 3600
    return np.where(found, x, np.nan), np.where(found, y, np.nan)
