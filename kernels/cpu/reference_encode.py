# SPDX-License-Identifier: BSD-3-Clause
"""Plain references of the encoders: NumPy, and streams as strings of 0 and 1."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import CPU
from skydelta.kernels.dither import COUNT, STRETCH, dither_table
from skydelta.kernels.encode import BLOCK, LEAST, LEVELS, LOWEST, NOISE, NULL, ZERO

SELECTORS = {8: 3, 16: 4, 32: 5}
VERBATIM = {8: 6, 16: 14, 32: 25}


def big_endian(words: np.ndarray, size: int, flip: bool) -> tuple[np.ndarray, int]:
    values = words.view(f"u{size}") ^ np.array(flip << (8 * size - 1), f"u{size}")
    out = values.astype(f">u{size}").view(np.uint32)
    return out, int(out.view(">u4").sum(dtype=np.uint64))


def slices_of(shape: tuple[int, int], tile: tuple[int, int]) -> list[tuple[slice, slice]]:
    """The tiles of an image in raster order."""
    starts = [range(0, n, t) for n, t in zip(shape, tile, strict=True)]
    return [(slice(y, y + tile[0]), slice(x, x + tile[1])) for y in starts[0] for x in starts[1]]


def dither_numbers(row: int, seed: int, n: int) -> np.ndarray:
    """float64 (n,): the dither numbers of a tile."""
    table, out, entry = dither_table(CPU), np.zeros(0, np.float32), (row + seed - 1) % COUNT
    while len(out) < n:
        out = np.concatenate([out, table[int(table[entry] * np.float32(STRETCH)) :]])
        entry = (entry + 1) % COUNT
    return out[:n].astype(float)


def quantise_tiles(
    image: np.ndarray, tile: tuple[int, int], level: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    tiles = slices_of(image.shape, tile)
    pixels, good = np.zeros(image.shape, np.int32), np.zeros(len(tiles), bool)
    step, zero = np.zeros((2, len(tiles)))
    for t, box in enumerate(tiles):
        values = image[box].astype(float)
        usable = np.isfinite(values) & (values != 0)
        triples = usable[:, :-4] & usable[:, 2:-2] & usable[:, 4:]
        with np.errstate(over="ignore", invalid="ignore"):
            distances = np.abs(2 * values[:, 2:-2] - values[:, :-4] - values[:, 4:]).astype(np.float32)[triples]
        if len(distances) < LEAST or np.isinf(values).any():
            continue
        delta = NOISE * float(np.sort(distances)[(len(distances) - 1) // 2]) / level
        low, high = (float(f(values[usable])) for f in (np.min, np.max))
        if not 0 < delta < np.inf or not high - low < LEVELS * delta:
            continue
        base = 0 if usable.all() else LOWEST
        numbers = dither_numbers(t, seed, values.size).reshape(values.shape)
        steps = np.floor((np.where(usable, values, low) - low) * (1 / delta) + numbers).astype(np.int64) + base
        pixels[box] = np.where(np.isnan(values), NULL, np.where(values == 0, ZERO, steps))
        step[t], zero[t], good[t] = delta, low - base * delta, True
    return pixels, step, zero, good


def rice_encode(pixels: np.ndarray, tile: tuple[int, int], use: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    streams = [
        rice_stream(pixels[box].ravel()) if used else b""
        for box, used in zip(slices_of(pixels.shape, tile), use, strict=True)
    ]
    return np.frombuffer(b"".join(streams), np.uint8), np.array([len(s) for s in streams], np.int64)


def rice_stream(values: np.ndarray) -> bytes:
    """One tile."""
    width = 8 * values.dtype.itemsize
    numbers = [int(v) % 2**width for v in values]
    bits = [f"{numbers[0]:0{width}b}"]
    differences = [(b - a) % 2**width for a, b in zip([numbers[0], *numbers], numbers, strict=False)]
    mapped = [2 * d if d < 2 ** (width - 1) else 2 * (2**width - d) - 1 for d in differences]
    for start in range(0, len(mapped), BLOCK):
        block = mapped[start : start + BLOCK]
        split = max((sum(block) // len(block)).bit_length() - 1, 0)
        coded = "".join("0" * (v >> split) + "1" + f"{v % 2**split:0{split}b}" * (split > 0) for v in block)
        selector = split + 1
        if sum(block) == 0:
            selector, coded = 0, ""
        elif split >= VERBATIM[width] or len(coded) >= width * len(block):
            selector, coded = VERBATIM[width] + 1, "".join(f"{v:0{width}b}" for v in block)
        bits += [f"{selector:0{SELECTORS[width]}b}", coded]
    text = "".join(bits)
    text += "0" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big")
