# SPDX-License-Identifier: BSD-3-Clause
"""Arrays as the libraries that mask and measure give them: numbers, where they are masked, and their unit."""

from __future__ import annotations

from typing import Any

import numpy as np
from astropy import units as u
from astropy.utils.masked import Masked

from skydelta.errors import InputError
from skydelta.kernels.backend import Array

POWERS = {"variance": 2, "sigma": 1, "weight": -2}
"""Power of the image's unit that a plane is in."""


def taken_apart(array: Any) -> tuple[Array, np.ndarray | None, u.UnitBase | None]:
    """The numbers of an array, where they are masked, and their unit; None without a mask or unit.

    Arrays of numpy and of devices, `numpy.ma`, astropy's Quantity and Masked.
    """
    mask, unit = None, None
    if isinstance(array, Masked):
        mask, array = np.asarray(array.mask), array.unmasked
    elif isinstance(array, np.ma.MaskedArray):
        mask, array = np.ma.getmaskarray(array), array.data
    if isinstance(array, u.Quantity):
        unit, array = array.unit, array.value
    values = array if hasattr(array, "__cuda_array_interface__") else np.asarray(array)
    return values, mask, unit


def unit_factor(own: u.UnitBase, kind: str, unit: u.UnitBase | None, label: str) -> float:
    """What brings a plane in a unit of its own to that which belongs to an image in ``unit``.

    Raises
    ------
    InputError
        Its unit is no variance, sigma or weight of such an image.
    """
    wanted = (unit or u.dimensionless_unscaled) ** POWERS[kind]
    try:
        return float(own.to(wanted))
    except u.UnitConversionError:
        raise InputError(f"{label}: {kind} is in {own}, which is no {wanted or 'number without a unit'}") from None


def plane_of(array: Any, kind: str, unit: u.UnitBase | None, label: str) -> Array:
    """A plane that belongs to an image in ``unit``: masked numbers are NaN, and a Quantity is brought to that unit.

    Raises
    ------
    InputError
        Its unit is no variance, sigma or weight of such an image.
    """
    values, mask, own = taken_apart(array)
    if own is not None and kind in POWERS:
        values = values * unit_factor(own, kind, unit, label)
    if mask is not None and mask.any():
        # a plane of bits has none
        values = np.where(mask, 0 if kind == "mask" else np.nan, values)
    return values
