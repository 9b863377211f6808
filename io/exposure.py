# SPDX-License-Identifier: BSD-3-Clause
"""The one data object: image, variance, mask, WCS, PSF, unit and header travel together."""

from __future__ import annotations

import contextlib
import html
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from astropy import units as u
from astropy.io import fits
from astropy.wcs import WCS
from astropy.wcs.wcsapi import SlicedLowLevelWCS

from skydelta.errors import InputError
from skydelta.io.header import check_flux
from skydelta.io.planes import MaskPlanes
from skydelta.io.psf import Psf
from skydelta.io.sky import low_level, sky_type
from skydelta.kernels.backend import Array, Backend, backend_of, to_host
from skydelta.kernels.core.tiles import Box
from skydelta.kernels.usable import usable_pixels

if TYPE_CHECKING:
    from skydelta.io.kernelerror import KernelError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Exposure:
    """An image and all that belongs to its pixels.

    Attributes
    ----------
    image : float32 (H, W)
        On the host or on a device; arrays are (y, x), 0-based, pixel centres at integers.
    variance : float32 (H, W) or None
        Variance (not sigma) in ``unit`` squared; NaN where the mask says so.
    mask : int32 (H, W) or None
        Bit planes named by ``planes``; 0 is good.
    planes : MaskPlanes
    wcs : astropy.wcs.WCS, an object of astropy's shared WCS interface (APE 14; GWCS), or None
        Of this array: 0-based pixel (0, 0) is the first pixel of ``image``. Only an astropy.wcs.WCS can be written.
    psf : Psf or None
    unit : astropy unit or None
    header : astropy.io.fits.Header
        Cards of the file without the WCS, which is written again from ``wcs``.
    origin : (int, int)
        (y0, x0) of this array in the frame it was cut from.
    id : str
    notes : dict
        What was decided on the way (variance source, mask convention, ...), JSON-able; goes into the receipt.
    kernel_error : KernelError or None
        Of a difference: what the error of its matching kernel does to fluxes. Fits take it from here.
    """

    image: Array
    variance: Array | None = None
    mask: Array | None = None
    planes: MaskPlanes = field(default_factory=MaskPlanes)
    wcs: Any = None
    psf: Psf | None = None
    unit: u.UnitBase | None = None
    header: fits.Header = field(default_factory=fits.Header)
    origin: tuple[int, int] = (0, 0)
    id: str = ""
    notes: dict[str, Any] = field(default_factory=dict)
    kernel_error: KernelError | None = None

    def __post_init__(self) -> None:
        for name in ("image", "variance", "mask"):
            plane = getattr(self, name)
            if plane is not None:
                object.__setattr__(self, name, self._native(name, plane))
        if self.image.ndim != 2:
            raise InputError(f"{self.id or 'exposure'}: image has shape {self.image.shape}; two dimensions are needed")
        check_flux(self.unit, self.id or "exposure")
        psf: Any = self.psf  # whatever the caller has given
        if psf is not None and not isinstance(psf, Psf):
            kind = type(psf).__name__
            raise InputError(f"{self.id or 'exposure'}: psf is a {kind}; a Psf is needed, as `read(psf=...)` makes it")
        for name in ("variance", "mask"):
            plane = getattr(self, name)
            if plane is not None and plane.shape != self.image.shape:
                raise InputError(
                    f"{self.id or 'exposure'}: {name} has shape {plane.shape}, the image {self.image.shape}"
                )

    def _native(self, name: str, plane: Any) -> Array:
        """The plane as an array in this machine's byte order; a mask as int32, with True for BAD.

        Raises
        ------
        InputError
            Not a plane of real numbers, or a mask that is not of whole numbers.
        """
        array = plane if hasattr(plane, "__cuda_array_interface__") else np.asarray(plane)
        kinds = "biu" if name == "mask" else "iuf"
        if array.dtype.kind not in kinds:
            raise InputError(
                f"{self.id or 'exposure'}: {name} holds {array.dtype}; "
                f"{'whole numbers' if name == 'mask' else 'real numbers'} are needed"
            )
        if name == "mask":
            if array.dtype.kind == "b":
                array = array * np.int32(self.planes.bit("BAD"))
            return array.astype(np.int32, copy=False)
        if array.dtype.itemsize == 2 and array.dtype.kind == "f":
            return array.astype(np.float32)
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def single(self) -> Exposure:
        """The exposure with float32 planes, as the stages take it; itself when it has them already.

        What float32 does not hold becomes NaN and NO_DATA, with a warning in the log.
        """
        xp, lost = self.backend.xp, None
        narrow: dict[str, Array] = {}
        for name in ("image", "variance"):
            wide = getattr(self, name)
            if wide is None or wide.dtype == np.float32:
                continue
            with np.errstate(over="ignore"):
                narrow[name] = wide.astype(np.float32)
            beyond = xp.isinf(narrow[name]) & xp.isfinite(wide)
            if wide.dtype.kind == "f" and bool(beyond.any()):
                narrow[name][beyond] = np.nan
                lost = beyond if lost is None else lost | beyond
        if lost is not None:
            mask = lost * np.int32(self.planes.bit("NO_DATA"))
            narrow["mask"] = mask if self.mask is None else mask | self.mask
            log.warning("%s: %d pixels are beyond float32 (3.4e38) and masked", self.id or "exposure", int(lost.sum()))
        return self.with_(**narrow) if narrow else self

    @property
    def shape(self) -> tuple[int, int]:
        return self.image.shape[0], self.image.shape[1]

    @property
    def backend(self) -> Backend:
        return backend_of(self.image)

    @property
    def nbytes(self) -> int:
        light = None if self.kernel_error is None else self.kernel_error.light
        return sum(p.nbytes for p in (self.image, self.variance, self.mask, light) if p is not None)

    def with_(self, **changes: Any) -> Exposure:
        """A copy with these attributes replaced; planes are shared, not copied."""
        return replace(self, **changes)

    def good(self) -> Array:
        """bool (H, W): pixels without an invalid bit and with a finite image (and positive variance, if any)."""
        return usable_pixels(self.image, self.variance, self.mask, self.planes.invalid)

    def to(self, backend: Backend) -> Exposure:
        """The same exposure with its planes on another backend; nothing is copied when they are there already."""
        move = {n: backend.asarray(p) for n in ("image", "variance", "mask") if (p := getattr(self, n)) is not None}
        if self.kernel_error is not None:
            move["kernel_error"] = self.kernel_error.to(backend)
        return self.with_(**move)

    def section(self, box: Box) -> Exposure:
        """A view of the part inside ``box`` (clipped to the image), WCS and origin moved along."""
        box = box.clip(self.shape)
        s = box.slices
        return self.with_(
            image=self.image[s],
            variance=None if self.variance is None else self.variance[s],
            mask=None if self.mask is None else self.mask[s],
            wcs=None if self.wcs is None else _cut(self.wcs, s),
            psf=None if self.psf is None else self.psf.moved(box.y0, box.x0),
            origin=(self.origin[0] + box.y0, self.origin[1] + box.x0),
            kernel_error=None if self.kernel_error is None else self.kernel_error.section(box),
        )

    def to_ccddata(self) -> Any:
        """astropy CCDData with a VarianceUncertainty and the int mask in ``flags``; mask is True where unusable."""
        from astropy.nddata import CCDData, VarianceUncertainty

        return CCDData(
            to_host(self.image),
            unit=self.unit or u.dimensionless_unscaled,
            uncertainty=None if self.variance is None else VarianceUncertainty(to_host(self.variance)),
            mask=None if self.mask is None else (to_host(self.mask) & self.planes.invalid) != 0,
            flags=None if self.mask is None else to_host(self.mask),
            wcs=self.wcs,
            meta=self.header.copy(),
        )

    @classmethod
    def from_ccddata(cls, ccd: Any, id: str = "") -> Exposure:
        """From astropy CCDData or NDData; any uncertainty becomes a variance, a mask becomes BAD.

        Metadata that are no header are taken over where they are numbers or text.

        Raises
        ------
        InputError
            An uncertainty of unknown meaning, or planes that do not fit the image.
        """
        from astropy.nddata import VarianceUncertainty

        planes = MaskPlanes()
        data = np.asarray(ccd.data)
        mask = None
        if ccd.mask is not None:
            mask = np.where(np.broadcast_to(ccd.mask, data.shape), planes.bit("BAD"), 0).astype(np.int32)
        variance = None
        if ccd.uncertainty is not None:
            try:
                variance = np.asarray(ccd.uncertainty.represent_as(VarianceUncertainty).array)
            except TypeError:
                kind = type(ccd.uncertainty).__name__
                raise InputError(f"{id or 'image'}: {kind} has no known relation to a variance") from None
        header = ccd.meta.copy() if isinstance(ccd.meta, fits.Header) else _cards(ccd.meta)
        return cls(data, variance, mask, planes, ccd.wcs, unit=ccd.unit, header=header, id=id).single()

    def _repr_html_(self) -> str:
        rows = {
            "shape": f"{self.shape[0]} x {self.shape[1]}",
            "dtype": self.image.dtype,
            "on": self.backend.name,
            "unit": self.unit,
            "variance": self.variance is not None,
            "planes": ", ".join(self.planes) if self.mask is not None else None,
            "wcs": None if self.wcs is None else sky_type(self.wcs),
            "psf": type(self.psf).__name__ if self.psf is not None else None,
        }
        cells = "".join(f"<tr><th>{k}</th><td>{html.escape(str(v))}</td></tr>" for k, v in rows.items())
        return f"<table><caption>Exposure {html.escape(self.id)}</caption>{cells}</table>"


def _cut(wcs: Any, s: tuple[slice, slice]) -> Any:
    """The WCS of a part of its array."""
    return wcs.slice(s) if isinstance(wcs, WCS) else SlicedLowLevelWCS(low_level(wcs), s)


def _cards(meta: Any) -> fits.Header:
    """The entries of a dictionary that are numbers or text, as cards."""
    header = fits.Header()
    for key, value in (meta or {}).items():
        if isinstance(value, str | bool | int | float) and isinstance(key, str):
            with contextlib.suppress(ValueError):  # not ASCII, not finite, too long: no card
                header[key if len(key) <= 8 else f"HIERARCH {key}"] = value
    return header
