# SPDX-License-Identifier: BSD-3-Clause
"""What a device is told of the tiles of an image, filled in one pass over them."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.jit import serial
from skydelta.kernels.decode import RAW, RICE, SIZE, Tiles

CODED, BIG, PLANES, NATIVE = range(4)
"""Layouts, as in ``decode.cuh``."""

_FIELDS = (
    "offset", "length", "first", "blank", "scale", "zero", "pixels", "dither", "fault", "layout", "width", "has_blank",
    "inside", "unpacked", "unused",
)  # fmt: skip
_RAW, _RICE, _SIZE = np.uint8(RAW), np.uint8(RICE), np.int32(SIZE)


def fill(table: np.ndarray, tiles: Tiles, corner: tuple[int, ...], shape: tuple[int, ...]) -> tuple[np.ndarray, bool]:
    """Rows of a device's table of tiles (``TILE`` of ``kernels/cuda/decode.py``), all of it written.

    Parameters
    ----------
    table : structured (n,)
    tiles : Tiles
    corner, shape : tuple of int (d,)
        Of the window that is decoded.

    Returns
    -------
    order : int32 (n,)
        Rows of the Rice tiles, then those of the others, each in order.
    inside : bool
        Every tile's pixels follow each other in the window.
    """
    order = np.empty(len(table), np.int32)
    inside = _fill(
        *(table[name] for name in _FIELDS),
        tiles.offset, tiles.length, tiles.codec, tiles.origin, tiles.extent, tiles.dither, tiles.scale, tiles.zero,
        tiles.blank, tiles.has_blank, np.array(corner, np.int64), np.array(shape, np.int64), order,
    )  # fmt: skip
    return order, bool(inside)


@serial
def _fill(
    to_offset, to_length, first, to_blank, to_scale, to_zero, pixels, to_dither, fault, layout, width, to_has_blank,
    inside, unpacked, unused,
    offset, length, codec, origin, extent, dither, scale, zero, blank, has_blank, corner, shape, order,
):  # fmt: skip
    n, axes = origin.shape
    rice, all_inside = 0, True
    for t in range(n):
        size, place, fits, whole = 1, 0, True, True
        # pixels follow each other where there is one along all axes but one, and all along those behind
        stride = 1
        for axis in range(axes - 1, -1, -1):
            at, many = origin[t, axis] - corner[axis], extent[t, axis]
            fits &= at >= 0 and at + many <= shape[axis] and (whole or many == 1)
            whole &= many == shape[axis]
            place += at * stride
            stride *= shape[axis]
            size *= many
        raw = codec[t] == _RAW
        each = length[t] // size
        sound = each in (1, 2, 4, 8) and each * size == length[t]
        to_offset[t], to_length[t], to_blank[t] = offset[t], length[t], blank[t]
        to_scale[t], to_zero[t], to_dither[t], to_has_blank[t] = scale[t], zero[t], dither[t], has_blank[t]
        first[t], inside[t], pixels[t] = place if fits else 0, fits, size
        layout[t], width[t] = BIG if raw else CODED, each if raw and sound else 0
        fault[t] = _SIZE if raw and not sound else 0
        unpacked[t] = 0
        unused[t] = 0
        all_inside &= fits
        if codec[t] == _RICE:
            order[rice] = t
            rice += 1
    for t in range(n):
        if codec[t] != _RICE:
            order[rice] = t
            rice += 1
    return all_inside
