# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the fused chain ``correlate_tiles``."""

import numpy as np

NAMES = ("inverse", "variance", "signal", "own", "own2")


def make(rng, shape):
    return {n: (rng.normal(0, 1, shape) + 1j * rng.normal(0, 1, shape)).astype(np.complex64) for n in NAMES}
