# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``resample_exact``: turned, mirrored, larger and smaller pixels, some mapped exactly."""

import numpy as np

from cases.resample import BITS
from cases.resample_prepare import planes
from skydelta.kernels.cpu.reference_resample import prepare
from skydelta.stages.align.mapping import control_grid

SHAPES = [(26, 41), (33, 25), (1, 40), (7, 5), (2, 2)]


def make(rng, shape):
    number = SHAPES.index(shape) if shape in SHAPES else int(rng.integers(5))
    image, variance, mask = planes(rng, shape)
    values, work = prepare(image, variance, mask, degree=0, fill=BITS.fill, bad=BITS.bad, no_data=BITS.no_data)
    turn, scale = rng.uniform(-0.3, 0.3), (1.0, 2.3, 0.4)[number % 3]
    c, s = scale * np.cos(turn), scale * np.sin(turn)
    sx, sy = rng.uniform(-3, 3, 2)
    parity = -1 if number % 2 else 1
    gap = rng.uniform(0.6, 0.9) * shape[1] / scale

    def evaluate(x, y):
        x, y = x - 0.5, y - 0.5
        px = c * x - s * y + sx + 1e-4 * x * x
        return np.where(x < gap, px if parity > 0 else shape[1] - 1 - px, np.nan), s * x + c * y + sy

    grid = control_grid(evaluate, (shape[0] + 3, max(2, shape[1])), shape, 1e-4)
    return {
        "values": values, "variance": None if number == 3 else variance, "work": work,
        "nodes": grid.nodes, "cells": grid.cells, "exact": grid.exact,
        "shape": (grid.shape[0] - 1, grid.shape[1] - 1), "flux": number % 2 == 0, "bits": BITS,
    }  # fmt: skip
