# SPDX-License-Identifier: BSD-3-Clause
"""The registry of kernels: one operation, one name, three implementations that must agree.

A public front (``kernels/convolve.py``, ...) declares a `KernelSpec` with `register` and calls the implementation for
the backend of its arrays with `implementation`. The conformance test walks the registry: CPU twin against reference,
CUDA against reference on a device, every CUDA entry compiled without one.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from skydelta.kernels.backend import Backend


@dataclass(frozen=True)
class CudaEntry:
    """One ``__global__`` function.

    Attributes
    ----------
    file : str
        Name in ``kernels/cuda``.
    name : str
        Function name.
    templates : tuple of tuple of str
        Every template argument list the launcher may ask for; one empty tuple when it is no template.
    max_spill : int
        Bytes of register spill allowed, at most.
    """

    file: str
    name: str
    templates: tuple[tuple[str, ...], ...] = ((),)
    max_spill: int = 0

    def expressions(self) -> list[str]:
        """Name expressions for the compiler: ``resample<3,true>``."""
        return [f"{self.name}<{','.join(t)}>" if t else self.name for t in self.templates]


@dataclass(frozen=True)
class Tolerance:
    """|a - b| <= absolute + relative * |b|, and why this much."""

    relative: float
    absolute: float
    why: str


@dataclass(frozen=True)
class KernelSpec:
    """One operation.

    Attributes
    ----------
    name : str
    twin, launch, reference : str
        ``module:function`` of the Numba twin, the CUDA launcher and the plain NumPy/SciPy reference; the same
        arguments, arrays on the host for the first and last, on a device for the launcher.
    entries : tuple of CudaEntry
    halo : str
        Neighbourhood read around a pixel, in words or px.
    bytes_per_pixel : float
        Least traffic to device memory for one output pixel: the floor a measured time is held against.
    tolerance : Tolerance
        Between any two of the three implementations.
    """

    name: str
    twin: str
    launch: str
    reference: str
    entries: tuple[CudaEntry, ...]
    halo: str
    bytes_per_pixel: float
    tolerance: Tolerance


FRONTS = (
    "background",
    "convolve",
    "crc",
    "cutouts",
    "decode",
    "deflate",
    "detect",
    "encode",
    "fit",
    "inflate",
    "maps",
    "masks",
    "normal_equations",
    "psf",
    "resample",
    "stacks",
    "stars",
    "subtract",
    "usable",
)
"""Modules of ``skydelta.kernels`` that register kernels."""

_registry: dict[str, KernelSpec] = {}


def register(spec: KernelSpec) -> KernelSpec:
    """Add a spec; a second one of the same name is a programming error."""
    if _registry.get(spec.name, spec) != spec:
        raise ValueError(f"kernel {spec.name} is registered twice")
    _registry[spec.name] = spec
    return spec


def registry() -> dict[str, KernelSpec]:
    """All kernels, fronts imported."""
    for front in FRONTS:
        importlib.import_module(f"skydelta.kernels.{front}")
    return dict(_registry)


@functools.cache
def resolve_target(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def implementation(spec: KernelSpec, backend: Backend) -> Callable[..., Any]:
    """The function that does this operation on this backend."""
    return resolve_target(spec.launch if backend.is_gpu else spec.twin)
