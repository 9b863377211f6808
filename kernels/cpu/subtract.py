# SPDX-License-Identifier: BSD-3-Clause
"""Numba twins of the per-pixel steps of a subtraction."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.cpu.jit import inline


@inline
def subtract(fixed, convolved, factor):
    return (fixed - convolved) * factor


@inline
def add_variance(fixed, spread):
    return fixed + spread


@inline
def judge(good, lost, most, leak, variance, limit):
    reached = not lost <= most or leak * leak > limit * variance
    return (1 if reached else 0), (1 if good != 0 and not reached else 0)


@inline
def blank(difference, total, factor, usable):
    nan = np.float32(np.nan)
    return (difference, total * factor) if usable != 0 else (nan, nan)
