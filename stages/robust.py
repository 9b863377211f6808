# SPDX-License-Identifier: BSD-3-Clause
"""Medians and spreads that outliers do not move."""

from __future__ import annotations

from typing import Any

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.stars import robust_levels


def median(values: np.ndarray) -> Any:
    """Along the first axis of a short table on the host, of at least one row: a third of the time of NumPy's."""
    low, high = (len(values) - 1) // 2, len(values) // 2
    ordered = np.partition(values, (low, high), axis=0)
    return (ordered[low] + ordered[high]) / 2


def levels(values: Array, times: float = 0.0, least: float = 0.0) -> Array:
    """`robust_levels` of float32 numbers in any order: float32 (3,), where they are.

    Median, 1.4826 times the median absolute deviation, and a limit above them; NaN do not count, and without a number
    all three are NaN.
    """
    return robust_levels(backend_of(values).xp.sort(values.ravel()), times, least)  # NaN go last
