# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``sample_snr``: those of the peaks, every first to third pixel."""

from cases import light_peaks

SHAPES = light_peaks.SHAPES


def make(rng, shape):
    case = light_peaks.make(rng, shape)
    del case["limit"], case["radius"]
    return case | {"every": 1 + sum(shape) % 3}
