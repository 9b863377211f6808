# SPDX-License-Identifier: BSD-3-Clause
"""How much noisier sums over pixels are than a variance plane says, where resampling correlates neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from astropy.io import fits

from skydelta.errors import InputError

HDU = "NOISECOR"

PLANES = ("FACTOR", "ALONGX", "ALONGY", "ACROSS")
"""Names of the planes of the HDU, in cards PLANE1 to PLANE4."""


@dataclass(frozen=True)
class NoiseCorrelation:
    """Moments of the noise's correlation rho at lags (dx, dy), for tiles of an image from its pixel (0, 0) on.

    The variance of the sum over a box of a x b px is the sum of the variance plane times
    S - X / a - Y / b + Z / (a b), with S, X, Y, Z the sums over all lags of rho times 1, |dx|, |dy| and |dx dy|; exact
    for boxes that are larger than the correlation reaches, in a tile whose correlation is the same everywhere.

    Attributes
    ----------
    moments : float64 (4, ny, nx)
        S, X, Y, Z of each tile; NaN where the image has no pixel.
    side : int
        Of a tile, px.
    """

    moments: np.ndarray
    side: int

    @property
    def factor(self) -> np.ndarray:
        """Noise of the sum over a large aperture over what the variance plane says: float64 (ny, nx)."""
        return np.sqrt(self.moments[0])

    def of_box(self, width: float, height: float) -> np.ndarray:
        """The same for a box of this size, px; a circular aperture is close to the square of its area.

        A box must be larger than the correlation reaches, about twice the footprint of the interpolation (in pixels of
        the coarser grid): a smaller one, such as a single pixel, whose noise is that of the variance plane, gives
        numbers that mean nothing.

        Raises
        ------
        InputError
            A side below 1 px.
        """
        if not min(width, height) >= 1:
            raise InputError(f"of_box: {width:g} x {height:g} px; sides of 1 px and more are allowed")
        s, x, y, z = self.moments
        return np.sqrt(np.maximum(s - x / width - y / height + z / (width * height), 0.0))

    def hdu(self) -> fits.ImageHDU:
        """The factor, X, Y and Z as an image HDU, float32 (4, ny, nx)."""
        planes = np.concatenate([self.factor[None], self.moments[1:]]).astype(np.float32)
        hdu = fits.ImageHDU(planes, name=HDU)
        hdu.header["TILESIDE"] = (self.side, "[pix] side of a tile, from pixel (0, 0) on")
        for k, (name, text) in enumerate(zip(PLANES, (
            "F: noise of large sums over that by VAR",
            "X, Y, Z: of a box of a x b pixels it is",
            "sqrt(F^2 - X/a - Y/b + Z/(a b)) times the",
            "root of the sum of VAR",
        ), strict=True), 1):  # fmt: skip
            hdu.header[f"PLANE{k}"] = (name, text)
        return hdu

    @classmethod
    def of_hdu(cls, hdu: fits.ImageHDU) -> NoiseCorrelation:
        """What `hdu` made.

        Raises
        ------
        InputError
            Another shape, or no size of the tiles.
        """
        shape, side = getattr(hdu.data, "shape", None), hdu.header.get("TILESIDE")
        if shape is None or len(shape) != 3 or shape[0] != len(PLANES) or not isinstance(side, int) or side < 1:
            raise InputError(f"{hdu.name}: shape {shape}, TILESIDE {side}; (4, ny, nx) and a number of px are needed")
        moments = hdu.data.astype(np.float64)
        moments[0] **= 2
        return cls(moments, side)
