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
    return reached, good and not reached


@inline
def blank(difference, total, factor, usable):
    nan = np.float32(np.nan)
    return (difference, total * factor) if usable else (nan, nan)


@inline
def doubt(good, filled, image, mask, saturated, hidden):
    if good:
        return np.float32(0)
    light = abs(filled)
    if mask & saturated:
        shown = abs(image) if np.isfinite(image) else np.float32(0)
        return hidden * (shown if light < shown else light)
    return light
