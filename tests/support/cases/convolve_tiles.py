# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``convolve_tiles``: a different random kernel for each tile, odd sizes, cut last tiles."""

import numpy as np

SHAPES = [(64, 64), (37, 53), (131, 70), (3, 100)]


def make(rng, shape):
    tile, (kh, kw) = 32, ((21, 21) if shape != (37, 53) else (5, 9))
    counts = [-(-n // tile) for n in shape]
    kernels = rng.normal(0, 1, (*counts, kh, kw)) / np.sqrt(kh * kw)
    return {
        "plane": rng.normal(0, 1, shape).astype(np.float32),
        "kernels": kernels.astype(np.float32),
        "tile": tile,
    }
