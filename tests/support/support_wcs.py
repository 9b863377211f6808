# SPDX-License-Identifier: BSD-3-Clause
"""WCS of every projection, the same plane as an object that is no FITS WCS, and headers of files."""

import warnings

import numpy as np
from astropy import units as u
from astropy.coordinates import ICRS, SkyCoord
from astropy.io import fits
from astropy.wcs import WCS
from astropy.wcs.wcsapi import BaseLowLevelWCS

PV = {
    "AZP": {1: 2.0, 2: 30.0},
    "SZP": {1: 2.0, 2: 180.0, 3: 60.0},
    "SIN": {1: 0.01, 2: -0.02},
    "ZPN": {1: 1.0, 3: 0.05},
    "AIR": {1: 60.0},
    "CYP": {1: 1.0, 2: 0.9},
    "CEA": {1: 0.8},
    **{kind: {1: 35.0, 2: 15.0} for kind in ("COP", "COE", "COD", "COO")},
    "BON": {1: 40.0},
    "HPX": {1: 4.0, 2: 3.0},
}
"""Parameters of the second axis; the others need none."""

PROJECTIONS = ("AZP", "SZP", "TAN", "STG", "SIN", "ARC", "ZPN", "ZEA", "AIR", "CYP", "CEA", "CAR", "MER", "COP", "COE",
               "COD", "COO", "SFL", "PAR", "MOL", "AIT", "BON", "PCO", "TSC", "QSC", "HPX", "XPH")  # fmt: skip
"""All of wcslib but CSC, whose inverse is an approximation."""


def projected(kind, shape=(150, 170), pixel=0.01, names=("RA--", "DEC-")):
    """A plane of this projection turned by 20 degrees, about 10 degrees from the reference point of its projection."""
    w = WCS(naxis=2)
    w.wcs.ctype = f"{names[0]}-{kind}", f"{names[1]}-{kind}"
    w.wcs.crval = 60.0, 35.0 if kind.startswith("CO") else 20.0 if kind == "XPH" else 0.0
    if kind in ("AZP", "SZP", "TAN", "STG", "SIN", "ARC", "ZPN", "ZEA", "AIR", "BON"):
        w.wcs.crval = 60.0, 40.0
    c, s = np.cos(np.radians(20.0)), np.sin(np.radians(20.0))
    w.wcs.cd = pixel * np.array([[-c, s], [s, c]])
    w.wcs.crpix = shape[1] / 2 + 500.0, shape[0] / 2 - 400.0
    w.wcs.set_pv([(2, k, v) for k, v in PV.get(kind, {}).items()])
    w.wcs.set()
    w.pixel_shape = shape[::-1]
    return w


def every_header(folder):
    """Each header of the files of a folder, with a function that gives its file's HDUs (None for a text file)."""
    for path in sorted(folder.iterdir()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if path.suffix == ".hdr":
                raw = path.read_bytes()
                yield fits.Header.fromtextfile(path) if b"\n" in raw else fits.Header.fromstring(raw.decode()), None
                continue
            with fits.open(path) as hdus:
                for hdu in hdus:
                    yield hdu.header, lambda hdus=hdus: hdus


class Wrapped(BaseLowLevelWCS):
    """The two-dimensional sky of a FITS WCS behind the bare shared interface, latitude first and in arcmin."""

    def __init__(self, inner, frame=None):
        self.inner, self.frame = inner, ICRS() if frame is None else frame

    pixel_n_dim = world_n_dim = 2
    array_shape = None
    world_axis_physical_types = ("pos.eq.dec", "pos.eq.ra")
    world_axis_units = ("arcmin", "arcmin")
    world_axis_object_components = (("sky", 1, "spherical.lat.arcmin"), ("sky", 0, "spherical.lon.arcmin"))

    @property
    def world_axis_object_classes(self):
        return {"sky": (SkyCoord, (), {"frame": self.frame, "unit": (u.arcmin, u.arcmin)})}

    def pixel_to_world_values(self, x, y):
        lon, lat = self.inner.all_pix2world(x, y, 0)
        return lat * 60, lon * 60

    def world_to_pixel_values(self, lat, lon):
        return self.inner.all_world2pix(np.asarray(lon) / 60, np.asarray(lat) / 60, 0)


def tangent_gwcs(w, bounded=None, bend=0.0):
    """A gwcs of the tangent plane of a FITS WCS; with ``bend`` a quadratic distortion that has no closed inverse."""
    from astropy.modeling import models
    from gwcs import WCS as Gwcs
    from gwcs import coordinate_frames

    shift = models.Shift(1 - w.wcs.crpix[0]) & models.Shift(1 - w.wcs.crpix[1])
    linear = models.AffineTransformation2D(w.wcs.cd, [0, 0])
    sky = models.Pix2Sky_TAN() | models.RotateNative2Celestial(*w.wcs.crval, 180.0)
    forward = shift | linear | sky
    if bend:
        polynomial = models.Polynomial2D(2, c1_0=1.0, c2_0=bend) & models.Polynomial2D(2, c0_1=1.0, c1_1=-bend)
        forward = shift | models.Mapping((0, 1, 0, 1)) | polynomial | linear | sky
    pixels = coordinate_frames.Frame2D(name="detector", axes_order=(0, 1), unit=(u.pix, u.pix))
    world = coordinate_frames.CelestialFrame(name="sky", reference_frame=ICRS(), axes_order=(0, 1))
    made = Gwcs([(pixels, forward), (world, None)])
    if bounded is not None:
        made.bounding_box = ((-0.5, bounded[1] - 0.5), (-0.5, bounded[0] - 0.5))
        made.pixel_shape = bounded[::-1]
    return made
