# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``merge_masks``: another number for every bit, and bits that go."""

import numpy as np

SHAPES = [(64, 64), (37, 53), (3, 100), (1, 1)]
HOST = ("moved_bits", "fixed_bits")


def make(rng, shape):
    def mask():
        value = rng.integers(0, 2**31, shape, dtype=np.int64) & rng.integers(0, 2**31, shape, dtype=np.int64)
        return np.where(rng.random(shape) < 0.05, value, 0).astype(np.int32)

    numbers = [np.left_shift(1, rng.permutation(31)).astype(np.int32) for _ in range(2)]
    numbers[0][:3] = 0
    return {
        "moved": mask(),
        "fixed": mask(),
        "moved_bits": numbers[0],
        "fixed_bits": numbers[1],
        "spreading": 0b10110111,
        "reached": rng.random(shape) < 0.3,
        "usable": rng.random(shape) < 0.7,
        "reach": 4,
        "invalid": 0b11111100,
        "edge": 8,
        "no_data": 16,
    }
