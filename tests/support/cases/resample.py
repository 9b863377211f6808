# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``resample``: every method on rotated, stretched, bent maps with cells mapped exactly."""

import numpy as np

from cases.resample_prepare import planes
from skydelta.kernels.cpu.reference_resample import prepare
from skydelta.kernels.resample import DEGREES, METHODS, MaskBits
from skydelta.stages.align.mapping import control_grid

SHAPES = [(80, 120), (51, 103), (64, 64), (41, 97), (60, 75), (48, 90), (37, 66), (1, 40), (7, 5), (5, 9), (2, 2)]
BITS = MaskBits(fill=0b10001, grow=2, bad=1, no_data=16, edge=8, interp=32)


def make(rng, shape):
    number = SHAPES.index(shape) if shape in SHAPES else int(rng.integers(11))
    method = number % len(METHODS)
    image, variance, mask = planes(rng, shape)
    values, work = prepare(
        image, variance, mask, degree=DEGREES[method], fill=BITS.fill, bad=BITS.bad, no_data=BITS.no_data
    )
    turn, scale = rng.uniform(-0.3, 0.3), rng.uniform(0.9, 1.1)
    c, s = scale * np.cos(turn), scale * np.sin(turn)
    sx, sy = rng.uniform(-3, 3, 2)
    gap = rng.uniform(0.6, 0.9) * shape[1]

    def evaluate(x, y):
        return np.where(x < gap, c * x - s * y + sx + 1e-4 * x * x, np.nan), s * x + c * y + sy

    grid = control_grid(evaluate, (shape[0] + 3, max(1, shape[1] - 1)), shape, 1e-4)
    return {
        "values": values, "variance": None if number in (6, 8) else variance, "work": work,
        "nodes": grid.nodes, "cells": grid.cells, "exact": grid.exact,
        "shape": grid.shape, "method": method, "flux": number % 2 == 0, "bits": BITS,
    }  # fmt: skip
