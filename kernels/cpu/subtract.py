# SPDX-License-Identifier: BSD-3-Clause
"""Numba twins of the per-pixel steps of a subtraction."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.jit import inline


@inline
def subtract(fixed, convolved, factor):
    return (fixed - convolved) * factor


@inline
def add_variance(fixed, spread, factor):
    return (fixed + spread) * factor


@inline
def judge(good, kept, least):
    return 1 if good != 0 and kept >= least else 0


@inline
def blank(difference, variance, usable):
    nan = np.float32(np.nan)
    return (difference, variance) if usable != 0 else (nan, nan)
