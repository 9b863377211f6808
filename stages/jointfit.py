# SPDX-License-Identifier: BSD-3-Clause
"""A dipole from its two images: a source in the science stamp, and one in the matched template.

Each lobe of their difference is seen in one plane alone. Their noise is independent, so the joint likelihood is the
product of both, and the fit of the whole is two fits of a source.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from skydelta.kernels.fit import LobeFit, Status

_WORSE = (Status.CONVERGED, Status.AT_BOUND, Status.MAX_EVALUATIONS, Status.SINGULAR, Status.NO_DATA)
"""How a fit ended, the worst last."""

_POSITIVE, _NEGATIVE = [0, 1, 2, 6, 7, 8], [3, 4, 5, 6, 7, 8]
"""Where flux, x, y and the background of the two sources are in the parameters of a dipole."""


def in_units(fit: LobeFit, scale: np.ndarray, level: np.ndarray) -> LobeFit:
    """Fits (n,) of one source in stamps less ``level`` (n,) and over ``scale`` (n,), in the units of the stamps."""
    one = np.ones_like(scale)
    by = np.stack([scale, one, one, *[scale] * fit.terms], 1)
    parameters = fit.parameters * by
    parameters[:, 3:4] += level[:, None]
    return replace(fit, parameters=parameters, covariance=fit.covariance * by[:, :, None] * by[:, None, :])


def lobes_of(science: LobeFit, template: LobeFit) -> LobeFit:
    """Fits of one source in two planes as those of a dipole.

    Parameters and covariance are flux, x, y of the source in the first, the same of that in the second with its flux
    negative, and the difference of the backgrounds; chi2, pixels and evaluations are sums, the status the worse one.
    """
    n, terms = len(science.chi2), science.terms
    sign = np.array([-1.0, 1.0, 1.0, *[-1.0] * terms])
    parameters, covariance = np.zeros((n, 6 + terms)), np.zeros((n, 6 + terms, 6 + terms))
    one, two = np.array(_POSITIVE[: 3 + terms]), np.array(_NEGATIVE[: 3 + terms])
    parameters[:, one] += science.parameters
    parameters[:, two] += template.parameters * sign
    covariance[:, one[:, None], one] += science.covariance
    covariance[:, two[:, None], two] += template.covariance * sign[:, None] * sign
    rank = {int(status): place for place, status in enumerate(_WORSE)}
    places = np.array([[rank[s] for s in fit.status.tolist()] for fit in (science, template)], int).reshape(2, n)
    return replace(
        science,
        parameters=parameters,
        covariance=covariance,
        chi2=science.chi2 + template.chi2,
        evaluations=science.evaluations + template.evaluations,
        status=np.array([int(s) for s in _WORSE], np.int32)[places.max(axis=0)],
        pixels=science.pixels + template.pixels,
    )
