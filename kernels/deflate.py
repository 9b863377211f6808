# SPDX-License-Identifier: BSD-3-Clause
"""Tiles as gzip members (RFC 1951, 1952): the byte planes of noise, each with a code of its own."""

from __future__ import annotations

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.spec import CudaEntry, KernelSpec, Tolerance, implementation, register

CHUNK = 1 << 14
"""Bytes that share a code, at most."""

LEAST = 6
"""Shortest repeat that is told as one: a frequent byte takes one or two bits, a short repeat as many as its bytes."""

LONGEST = 258
"""Longest repeat that has a symbol."""

STORED = 42
"""Bits, at most, of a block that is stored beside its bytes."""

HEAD = bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255])
"""What a member begins with: deflate, no name, no time, no system."""

MEMBER = len(HEAD) + 8
"""Bytes of a member around its blocks."""

GZIP = register(
    KernelSpec(
        name="gzip_encode",
        twin="skydelta.kernels.cpu.deflate:gzip_encode",
        launch="skydelta.kernels.cuda.deflate:gzip_encode",
        reference="skydelta.kernels.cpu.reference_deflate:gzip_encode",
        entries=(
            CudaEntry(
                "deflate.cu",
                "tile_bytes",
                (("unsigned char",), ("unsigned short",), ("unsigned int",), ("unsigned long long",)),
            ),
            *(CudaEntry("deflate.cu", name) for name in ("deflate_code", "deflate_places", "deflate_emit")),
        ),
        halo="the tile",
        bytes_per_pixel=7.0,
        tolerance=Tolerance(0.0, 0.0, "integers"),
    )
)


def gzip_encode(pixels: Array, tile: tuple[int, int], use: Array, shuffle: bool) -> tuple[Array, Array]:
    """Pixels to gzip members, one for each tile, of their big-endian bytes.

    A tile's bytes are cut into chunks of at most `CHUNK`, which end where a byte plane does. Each is a block with
    a Huffman code of its own, or stored where that is not longer (Huffman 1952, Proc. IRE 40, 1098). `LEAST` bytes or
    more that repeat the byte before (or, not shuffled, the pixel before) are told by their number. Of images with noise
    this is smaller than what zlib finds by looking for strings, because planes differ in their statistics and noise has
    no strings; data that repeat at other distances, such as smooth ramps, become larger than by zlib.

    Parameters
    ----------
    pixels : array of 1, 2, 4 or 8 bytes an element (H, W)
    tile : (int, int)
        Rows and columns of a tile.
    use : bool (tiles,)
        Tiles to code; the others get no bytes.
    shuffle : bool
        GZIP_2 (FITS 4.0, 10.4.2): all first bytes of the pixels of a tile, then all second ones, and so on.

    Returns
    -------
    streams : uint8 (n,)
        One after the other, tiles in raster order.
    sizes : int64 (tiles,)
        Bytes of each.
    """
    return implementation(GZIP, backend_of(pixels))(pixels, tile, use, shuffle)
