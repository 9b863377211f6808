# SPDX-License-Identifier: BSD-3-Clause
"""One call for those who come from the reproject package."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from skydelta.errors import ConfigError
from skydelta.kernels.backend import Array, resolve
from skydelta.kernels.resample import Method
from skydelta.stages.align import Align
from skydelta.stages.align.inputs import as_target, bare_image
from skydelta.stages.base import Context

ORDERS: dict[int | str, Method] = {
    "nearest-neighbor": "nearest",
    0: "nearest",
    "bilinear": "bilinear",
    1: "bilinear",
    "bicubic": "bspline3",
    3: "bspline3",
    5: "bspline5",
}
"""Orders of ``reproject_interp`` that have an equal here."""


def reproject(
    input_data: Any,
    output_projection: Any,
    shape_out: tuple[int, int] | None = None,
    *,
    hdu_in: int | str | None = None,
    method: Method | None = None,
    pixfrac: float | None = None,
    order: int | str | None = None,
    conserve: Literal["flux", "brightness"] = "brightness",
    return_footprint: bool = True,
    device: str = "auto",
) -> Array | tuple[Array, Array]:
    """Bring an image onto another projection.

    The arguments are those of ``reproject.reproject_interp``. Other than there, bad pixels (NaN) are filled before
    they are interpolated, so that one of them costs a target pixel only where it has more than half of the weight.

    Parameters
    ----------
    input_data : path, HDU, HDUList, (array, WCS or Header), NDData, or Exposure
        Two-dimensional. Masked pixels count as bad.
    output_projection : WCS, Header, path, HDU, NDData, or Exposure
        Any object of astropy's shared WCS interface will do as a WCS, here and in ``input_data``.
    shape_out : (int, int), optional
        (H, W); otherwise ``array_shape`` of the WCS, or NAXIS1 and NAXIS2 of the header.
    hdu_in : int or str, optional
        Which HDU of ``input_data``.
    method : str, optional
        As that of `Align`: bspline3, bspline5, lanczos3, lanczos4, lanczos5, bilinear, nearest, exact, drizzle or
        adaptive; bspline3 unless ``order`` says another.
    pixfrac : float, optional
        Of drizzle: side of a drop, in sides of a pixel of the input; 1 when not given.
    order : {"nearest-neighbor", "bilinear", "bicubic", 0, 1, 3, 5}, optional
        What `reproject_interp` calls nearest, bilinear, bspline3 and bspline5; its biquadratic has no equal here.
    conserve : {"brightness", "flux"}
        Keep values as they are, or multiply them by the area of a target pixel in source pixels.
    return_footprint : bool
        Else the array alone.
    device : str
        auto, cpu, cuda or cuda:N.

    Returns
    -------
    array : float32 (H, W)
        NaN outside the input.
    footprint : float32 (H, W)
        Part of the interpolation kernel's weight that lies on good pixels of the input, 0 to 1 (drizzle: the area of
        drops over that of full cover); 0 where array is NaN.

    Raises
    ------
    InputError
        Axes that cannot be turned into each other, no WCS, no size, no two-dimensional image.
    ConfigError
        A method or order that does not exist, both of them, or something that is no image.
    """
    if order is not None:
        if method is not None:
            raise ConfigError(f"reproject: order {order!r} and method {method!r}: one of them is allowed")
        if isinstance(order, bool) or order not in ORDERS:
            raise ConfigError(f"reproject: order {order!r}; allowed are {', '.join(map(repr, ORDERS))}")
        method = ORDERS[order]
    backend = resolve(device)
    image = bare_image(input_data, hdu_in).to(backend)
    onto = as_target(output_projection, shape_out)
    drops: dict[str, Any] = {} if pixfrac is None else {"pixfrac": pixfrac}
    stage = Align(method=method or "bspline3", conserve=conserve, **drops)
    new, footprint = stage.resampled(Context(backend, id="reproject"), image, onto, empty=True)
    array = backend.asarray(new.image, np.float32)
    if not return_footprint:
        return array
    return array, backend.xp.where(backend.xp.isnan(array), np.float32(0.0), footprint)
