# SPDX-License-Identifier: BSD-3-Clause
"""Conformance inputs, one module for each registered kernel, named after it.

``make(rng, shape)`` returns the arguments of the kernel by name: fresh random host arrays, some pixels NaN or masked.
``SHAPES`` lists the shapes to try (default `DEFAULT_SHAPES`); keep some odd. ``HOST`` names arguments
that stay on the host when the CUDA launcher runs: small tables; everything else is moved to the device. ``UNCOMPARED``
lists parts of the result that tell how an implementation went about it, not what it found (``"result.3"``). The inputs
of a fused chain are in a module of the chain's name.
"""

DEFAULT_SHAPES = [(64, 64), (37, 53)]
