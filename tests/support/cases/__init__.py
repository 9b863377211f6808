# SPDX-License-Identifier: BSD-3-Clause
"""Conformance inputs, one module for each registered kernel, named after it.

``make(rng, shape)`` returns the arguments of the kernel by name: fresh random host arrays, some pixels NaN or masked.
``SHAPES`` lists the shapes to try (default `DEFAULT_SHAPES`); keep some odd.
"""

DEFAULT_SHAPES = [(64, 64), (37, 53)]
