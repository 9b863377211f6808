# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``resample_adaptive``: those of ``resample_exact``."""

from cases.resample_exact import SHAPES, make

__all__ = ["SHAPES", "make"]
