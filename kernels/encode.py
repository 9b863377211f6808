# SPDX-License-Identifier: BSD-3-Clause
"""Pixels as the bytes that FITS stores: big-endian, quantised, Rice-coded (FITS 4.0, 3.3.2 and 10)."""

from __future__ import annotations

import math

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.checksum import add_words
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register

SAME = Tolerance(0.0, 0.0, "integers, and float64 steps that round alike everywhere: the same bits")

NOISE = 1.482602218505602 / math.sqrt(6.0)
"""Standard deviation of white Gaussian noise over the median of \\|2 x_i - x_(i-2) - x_(i+2)\\|."""

LEAST = 8
"""Differences that a noise estimate needs, at least."""

NULL, ZERO = -2147483648, -2147483646
"""Quantised values of NaN and, under SUBTRACTIVE_DITHER_2, of exactly 0."""

LOWEST = -2147483631
"""Smallest ordinary value of a tile that has NaN or zeros: next to theirs, so that the steps between stay short."""

LEVELS = 2147483584
"""Largest range of a tile, in steps."""

BLOCK = 32
"""Pixels that share one Rice parameter."""

BIG_ENDIAN = register(
    KernelSpec(
        name="big_endian",
        twin="skydelta.kernels.cpu.encode:big_endian",
        launch="skydelta.kernels.cuda.encode:big_endian",
        reference="skydelta.kernels.cpu.reference_encode:big_endian",
        entries=(CudaEntry("encode.cu", "big_endian"),),
        halo="none",
        bytes_per_pixel=8.0,
        tolerance=SAME,
    )
)

QUANTISE = register(
    KernelSpec(
        name="quantise_tiles",
        twin="skydelta.kernels.cpu.encode:quantise_tiles",
        launch="skydelta.kernels.cuda.encode:quantise_tiles",
        reference="skydelta.kernels.cpu.reference_encode:quantise_tiles",
        entries=(CudaEntry("encode.cu", "quantise_tiles", (("float",), ("double",))),),
        halo="the tile",
        bytes_per_pixel=8.0,
        tolerance=SAME,
    )
)

RICE = register(
    KernelSpec(
        name="rice_encode",
        twin="skydelta.kernels.cpu.encode:rice_encode",
        launch="skydelta.kernels.cuda.encode:rice_encode",
        reference="skydelta.kernels.cpu.reference_encode:rice_encode",
        entries=tuple(
            CudaEntry("encode.cu", name, (("unsigned char",), ("unsigned short",), ("unsigned int",)))
            for name in ("rice_sizes", "rice_emit")
        ),
        halo="the pixel before",
        bytes_per_pixel=5.0,
        tolerance=SAME,
    )
)


def tile_counts(shape: tuple[int, int], tile: tuple[int, int]) -> tuple[int, int]:
    """Tiles along y and x; those at the far edges are cut to the image."""
    return -(-shape[0] // tile[0]), -(-shape[1] // tile[1])


def big_endian(pixels: Array, flip: bool = False) -> tuple[Array, int]:
    """The data unit of an image: big-endian pixels, and their checksum.

    Parameters
    ----------
    pixels : array of 1, 2, 4 or 8 bytes an element
    flip : bool
        Flip the top bit of every element: unsigned integers as FITS stores them with BZERO.

    Returns
    -------
    data : uint8 (n,)
        A multiple of 4 bytes, padded with zeros.
    total : int
        Ones-complement sum of its big-endian 32-bit words: what DATASUM says.
    """
    size = pixels.dtype.itemsize
    xp = backend_of(pixels).xp
    raw = xp.ascontiguousarray(pixels).reshape(-1).view(np.uint8)
    top = np.uint8(0x80 if flip else 0)
    pattern = np.frombuffer(bytes(size - 1) + bytes([top]), np.uint8)  # a native element with its top bit set
    rest = -len(raw) % 4
    if rest:  # what fills the last word becomes 0 like the padding behind it
        raw = xp.concatenate([raw, xp.asarray(np.resize(pattern, rest))])
    words, total = implementation(BIG_ENDIAN, backend_of(pixels))(raw.view(np.uint32), size, flip)
    return words.view(np.uint8), add_words(total)


def quantise_tiles(image: Array, tile: tuple[int, int], level: float, seed: int) -> tuple[Array, Array, Array, Array]:
    """Floats as integers in steps of a fraction of each tile's noise, by subtractive dithering.

    The step is the noise over ``level``. Noise is `NOISE` times the (lower) median of abs(2 x_i - x_(i-2) - x_(i+2))
    along the rows of the tile, over pixels that are finite and not 0 (Stoehr et al. 2008, ASP Conf. 394, 505; Pence,
    Seaman & White 2009, PASP 121, 414). A value becomes floor((x - smallest) / step + r), r the tile's dither numbers,
    and is restored as (integer - r + 0.5) step + zero: at most half a step off, with an error that does not depend on
    the value (Pence, White & Seaman 2010, PASP 122, 1065). NaN becomes `NULL` and 0 `ZERO`.

    Parameters
    ----------
    image : float32 or float64 (H, W)
    tile : (int, int)
        Rows and columns of a tile.
    level : float
        Steps in one standard deviation of the noise.
    seed : int
        ZDITHER0, 1 to 10000.

    Returns
    -------
    pixels : int32 (H, W)
    step, zero : float64 (tiles,)
        ZSCALE and ZZERO; tiles in raster order.
    good : bool (tiles,)
        False where a tile cannot be quantised (no noise, or none that single precision holds, too few pixels, an
        infinite value, a range of `LEVELS` steps or more); its pixels, step and zero are then 0.
    """
    return implementation(QUANTISE, backend_of(image))(image, tile, level, seed)


def rice_encode(pixels: Array, tile: tuple[int, int], use: Array) -> tuple[Array, Array]:
    """Integers to RICE_1 streams, one for each tile, in blocks of `BLOCK` pixels (FITS 4.0, 10.4.1).

    A block is coded with split position floor(log2(mean mapped difference)), or verbatim where that is not longer.

    Parameters
    ----------
    pixels : uint8, int16 or int32 (H, W)
    tile : (int, int)
        Rows and columns of a tile.
    use : bool (tiles,)
        Tiles to code; the others get no bytes.

    Returns
    -------
    streams : uint8 (n,)
        One after the other, tiles in raster order.
    sizes : int64 (tiles,)
        Bytes of each.
    """
    return implementation(RICE, backend_of(pixels))(pixels, tile, use)
