# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``bad_reach``: scattered bad pixels, and tiles that reach none."""

import numpy as np

SHAPES = [(64, 64), (37, 53), (131, 170), (3, 100)]


def make(rng, shape):
    tile, (kh, kw) = 32, ((21, 21) if shape != (37, 53) else (5, 9))
    counts = [-(-n // tile) for n in shape]
    kernels = rng.normal(0, 1, (*counts, kh, kw)) / np.sqrt(kh * kw)
    good = rng.random(shape) > 0.01
    good[:, shape[1] // 2 :] = True
    return {
        "doubt": rng.exponential(1, shape).astype(np.float32),
        "good": good,
        "kernels": kernels.astype(np.float32),
        "tile": tile,
    }
