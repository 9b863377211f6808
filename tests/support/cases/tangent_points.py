# SPDX-License-Identifier: BSD-3-Clause
"""Inputs of the kernel ``tangent_points``: lattices of ``shape``, distortions of all degrees and with odd powers of the
radius, places beyond a fold and behind the tangent plane."""

import numpy as np

from skydelta.kernels.maps import MOST_DEGREE, RADIAL, Distortion, pack

SHAPES = [(33, 47), (64, 64), (1, 1), (7, 5), (5, 300), (3, 2), (2, 65)]


def make(rng, shape):
    number = SHAPES.index(shape) if shape in SHAPES else int(rng.integers(7))
    target_degree, source_degree = [(0, 0), (2, 3), (3, 2), (MOST_DEGREE, 5), (1, 1), (0, MOST_DEGREE), (7, 7)][number]
    turn = rng.uniform(-np.pi, np.pi)
    c, s = np.cos(turn), np.sin(turn)
    homography = np.array([[c, -s, rng.uniform(-0.1, 0.1)], [s, c, 0.02], [*rng.uniform(-0.05, 0.05, 2), 1.0]])
    if number == 5:
        homography[2] = [-1.0, 0.3, 0.4]  # the horizon of the tangent point passes through
    ends = side(rng, target_degree, number == 6), side(rng, source_degree, number in (1, 6))
    origin = rng.uniform(-50, 900, (1 + number % 3, 2))
    return {"chain": pack(ends[0], homography, ends[1]), "origin": origin, "step": 900 / max(shape), "shape": shape}


def side(rng, degree, radial):
    """A distortion of 1000 px onto -0.5 to 0.5, of a few per cent at the rim; folded not far beyond."""
    affine = np.array([[1e-3, 2e-5, -0.5], [-1e-5, 1e-3, -0.45]])
    if not degree:
        return Distortion(affine)
    i, j = np.indices((degree + 1, degree + 1))
    terms = np.where(i + j <= degree, rng.normal(0, 0.1, (2, degree + 1, degree + 1)), 0.0)
    terms[0, 1, 0] += 1
    terms[1, 0, 1] += 1
    return Distortion(affine, terms, rng.normal(0, 0.02, (2, RADIAL)) if radial else np.zeros((2, RADIAL)))
