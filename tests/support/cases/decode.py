# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``decode``: images of every stored type, tiles of every codec that fits, windows, nulls, masks.

The first shape is a whole image of one codec, as files have them; the others mix codecs and dithers tile by tile.
"""

import numpy as np
import support_tiles

from skydelta.kernels import decode as front
from skydelta.kernels.decode import NO_DITHER, Form, Tiles

SHAPES = [(64, 100), (40, 31), (37, 53), (23, 60), (50, 41), (33, 48), (29, 57), (61, 22), (1, 1), (7, 130), (3, 20000)]
WRITTEN = ("out", "mask")


def make(rng, shape):
    number = SHAPES.index(shape) if shape in SHAPES else 0
    if number == 0 or max(shape) > 10000:
        return quantised_rows(rng, shape)
    stored = ["uint8", "int16", "int32", "int64", "float32", "float64"][number % 6]
    tile = tuple(int(rng.integers(1, n + 1)) for n in (min(shape[0], 30), min(shape[1], 60)))
    block = int(rng.choice([16, 32, 5, 100]))
    heap, tiles, form = support_tiles.table(rng, stored, shape, tile, rice_block=block)
    floating = stored.startswith("float")
    variants = [{}, {"scale": -0.3, "zero": 17.5}, {"exact_zero": True} if floating else {"flip": True}]
    variants += [{}] if floating else [{"blank": 3}, {"flip": True, "blank": 3}]
    form = Form(**{**vars(form), **variants[int(rng.integers(len(variants)))]})
    nullable = not floating and (form.blank is not None or bool(tiles.has_blank.any()))
    dtypes = sorted({"float32", form.native(nullable), form.native(False)})
    window, corner = [(shape, (0, 0)), ((9, 17), (5, 9)), ((shape[0] + 9, shape[1]), (-3, 4))][int(rng.integers(3))]
    return arguments(heap, tiles, form, window, corner, str(rng.choice(dtypes)))


def arguments(heap, tiles, form, window, corner, dtype):
    return {
        "out": np.full(window, 3, dtype), "heap": heap, "tiles": tiles, "form": form, "corner": corner,
        "mask": np.full(window, 1, np.int32), "mask_bit": 4, "threads": None,
    }  # fmt: skip


def quantised_rows(rng, shape, kinds=8):
    """A float32 image in rows of quantised Rice tiles with both nulls and exact zeros; ``kinds`` different rows."""
    form = Form("float32", exact_zero=True)
    rows = rng.normal(0, rng.uniform(1, 40, (kinds, 1)), (kinds, shape[1])).astype(np.int32)
    rows[rng.random(rows.shape) < 0.001] = front.EXACT_ZERO
    rows[rng.random(rows.shape) < 0.001] = -2147483648
    streams = [support_tiles.encoded(front.RICE, row, form) for row in rows]
    number = np.arange(shape[0])
    length = np.array([len(streams[i % kinds]) for i in number], np.int64)
    origin = np.stack([number, 0 * number], axis=1).astype(np.int64)
    n = shape[0]
    tiles = Tiles(
        np.cumsum(length) - length, length, np.full(n, front.RICE, np.uint8), origin,
        np.tile(np.array([[1, shape[1]]], np.int64), (n, 1)), ((number * 3 + 9990) % 10000).astype(np.int32),
        rng.uniform(0.1, 2, n), rng.normal(0, 100, n), np.full(n, -2147483648, np.int64), np.ones(n, np.uint8),
    )  # fmt: skip
    tiles.dither[:: kinds + 1] = NO_DITHER
    heap = np.frombuffer(b"".join(streams[i % kinds] for i in number), np.uint8).copy()
    return arguments(heap, tiles, form, shape, (0, 0), "float32")
