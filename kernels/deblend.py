# SPDX-License-Identifier: BSD-3-Clause
"""Footprints split into objects along the tree of their peaks; the few pixels of footprints are on the host."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.deblend import peak_tree as _peak_tree


def peak_tree(
    pixel: np.ndarray,
    shape: tuple[int, int],
    label: np.ndarray,
    light: np.ndarray,
    noise: np.ndarray,
    significance: float,
    contrast: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Objects of footprints: branches of the peak tree that count (multi-thresholding of Bertin & Arnouts 1996).

    The light is flooded from the brightest pixel down. Where two branches meet, at a saddle, the one with the lower
    peak is an object of its own if its peak is ``significance`` times the noise above the saddle and its light above
    the level of the saddle is more than ``contrast`` of that of the object it touches; not of the whole footprint's, or
    the faint would be lost in a crowd. A branch of several objects is one too. Every pixel is a level, so that
    this is the limit of many thresholds. A pixel below a saddle belongs to the object of its brightest neighbour.

    Parameters
    ----------
    pixel : int (n,)
        y W + x of the pixels in footprints, each once, in raster order.
    shape : (int, int)
        H and W.
    label : int (n,)
        Of the footprint of each pixel, above 0.
    light, noise : float64 (n,)
        Finite; objects are bright, so give -image for negative ones. Noise is that of one pixel of ``light``.
    significance, contrast : float

    Returns
    -------
    peak : int (m,)
        Index, in ``pixel``, of the peak of every object; in raster order.
    segment : int (n,)
        Number of the object, from 0, of every pixel.
    """
    arrays = (np.ascontiguousarray(pixel, np.int64), shape[1], np.ascontiguousarray(label, np.int64))
    floats = (np.ascontiguousarray(light, np.float64), np.ascontiguousarray(noise, np.float64))
    return _peak_tree(*arrays, *floats, float(significance), float(contrast))
