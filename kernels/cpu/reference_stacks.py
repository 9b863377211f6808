# SPDX-License-Identifier: BSD-3-Clause
"""Plain NumPy references of the work on stacks of tiles."""

from __future__ import annotations

import numpy as np


def cut_tiles(
    difference, fixed, moved, usable, good_fixed, good_moved, rows, columns, size, scale
) -> tuple[np.ndarray, np.ndarray]:
    pad = size + int(max(np.abs(rows).max(), np.abs(columns).max()))
    planes = [
        np.where(usable, difference, 0),
        np.where(good_fixed, fixed * np.float32(scale), 0),
        np.where(good_moved, moved * np.float32(scale), 0),
        usable,
    ]
    padded = [np.pad(plane, pad) for plane in planes]
    starts = [(y + pad, x + pad) for y in rows for x in columns]
    *values, use = (np.stack([p[y : y + size, x : x + size] for y, x in starts]) for p in padded)
    return np.stack(values).astype(np.float32), use


def join_tiles(whitened, variance, exact, weight, plain, signal, usable, rows, columns, pad) -> np.ndarray:
    valid = usable & (weight > 0) & (exact > 0) & (plain > 0)
    with np.errstate(all="ignore"):
        snr = np.where(valid, signal / np.sqrt(weight.astype(float) * exact / plain), np.nan)
    stacks = [np.where(usable, whitened, np.nan), np.where(usable, variance, np.nan), snr]
    out = np.empty((3, rows[-1] - rows[0], columns[-1] - columns[0]), np.float32)
    for t in range(len(whitened)):
        r, c = divmod(t, len(columns) - 1)
        h, w = rows[r + 1] - rows[r], columns[c + 1] - columns[c]
        y, x = rows[r] - rows[0], columns[c] - columns[0]
        for plane, stack in zip(out, stacks, strict=True):
            plane[y : y + h, x : x + w] = stack[t, pad : pad + h, pad : pad + w]
    return out
