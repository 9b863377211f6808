# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the fused chain ``filter_tiles``."""

import numpy as np

NAMES = ("data", "fixed", "moved", "white2", "moved2", "exact_fixed", "exact_moved")


def make(rng, shape):
    planes = {n: (rng.normal(0, 1, shape) + 1j * rng.normal(0, 1, shape)).astype(np.complex64) for n in NAMES}
    return planes | {"white": rng.uniform(0, 1, shape).astype(np.float32)}
