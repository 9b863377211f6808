# SPDX-License-Identifier: BSD-3-Clause
"""Subtract, add variances, judge and blank: one pass over the pixels."""

from __future__ import annotations

from skydelta.kernels.core.fused import FusedKernel, Step
from skydelta.kernels.cpu import subtract as twins

_FILE = "subtract.cuh"

SUBTRACT = FusedKernel(
    "subtract_images",
    (
        Step("subtract", ("fixed", "convolved", "factor"), ("raw",), twins.subtract, "subtract", _FILE),
        Step("add_variance", ("fixed_variance", "spread"), ("sum",), twins.add_variance, "add_variance", _FILE),
        Step(
            "judge",
            ("good", "lost", "most", "leak", "sum", "limit"),
            ("reached", "usable"),
            twins.judge,
            "judge",
            _FILE,
        ),
        Step("blank", ("raw", "sum", "factor2", "usable"), ("difference", "variance"), twins.blank, "blank", _FILE),
    ),
    types={
        **dict.fromkeys(
            ("fixed", "convolved", "factor", "raw", "fixed_variance", "spread", "factor2", "sum"), "float32"
        ),
        **dict.fromkeys(("lost", "most", "leak", "limit", "difference", "variance"), "float32"),
        **dict.fromkeys(("good", "reached", "usable"), "bool"),
    },
    outputs=("difference", "variance", "reached", "usable"),
    scalars=("factor", "factor2", "most", "limit"),
)
"""D = (F - C) factor and its variance (V_F + V_C) factor^2, NaN where not ``usable``.

Planes: fixed, convolved, fixed_variance, spread, lost (share of the kernel's weight on bad pixels), leak (what bad
pixels may add to C), all float32; good (bool). Scalars: factor, factor2 (its square), most (largest share lost),
limit (largest leak^2 over the variance). ``reached``: the kernel touches bad pixels too hard, good or not.
"""

DOUBT = FusedKernel(
    "doubt",
    (
        Step(
            "doubt", ("good", "filled", "image", "mask", "saturated", "hidden"), ("doubt",), twins.doubt, "doubt", _FILE
        ),
    ),
    types={
        **dict.fromkeys(("filled", "image", "hidden", "doubt"), "float32"),
        **dict.fromkeys(("mask", "saturated"), "int32"),
        "good": "bool",
    },
    outputs=("doubt",),
    scalars=("saturated", "hidden"),
)
"""How wrong the filling of a bad pixel may be: as the light around it, or, saturated, as what it may hide; else zero.

Planes: good (bool), filled and image (float32), mask (int32). Scalars: saturated (bits of the mask), hidden (how many
times its value a saturated pixel may hide).
"""
