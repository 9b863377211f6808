# SPDX-License-Identifier: BSD-3-Clause
"""Where arrays live and which library computes on them; the only module that imports cupy."""

from __future__ import annotations

import functools
import importlib
import logging
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from skydelta.errors import ConfigError, DeviceError

Array = Any
"""A numpy or cupy array; the annotations of this package say which shape and dtype."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Backend:
    """One place to compute.

    Attributes
    ----------
    kind : {"cpu", "cuda"}
    index : int
        CUDA device number; 0 on the CPU.
    asked : str
        What the user asked for (``auto``, ``cpu``, ``cuda``, ``cuda:N``), recorded with every result.
    """

    kind: str
    index: int = 0
    asked: str = "auto"

    @property
    def is_gpu(self) -> bool:
        return self.kind == "cuda"

    @property
    def name(self) -> str:
        """``cpu`` or ``cuda:N``: what was used."""
        return f"cuda:{self.index}" if self.is_gpu else "cpu"

    @property
    def xp(self) -> ModuleType:
        """The array namespace: numpy or cupy."""
        return cupy() if self.is_gpu else np

    @property
    def fft(self) -> ModuleType:
        """A module with rfft2, irfft2 and next_fast_len that keeps float32."""
        return _module("cupyx.scipy.fft" if self.is_gpu else "scipy.fft")

    @property
    def ndimage(self) -> ModuleType:
        return _module("cupyx.scipy.ndimage" if self.is_gpu else "scipy.ndimage")

    def cholesky(self, a: Array, least: float = 0.0) -> Array:
        """Lower factor of a symmetric, positive definite float64 matrix (n, n); above its diagonal stands anything.

        Raises
        ------
        numpy.linalg.LinAlgError
            Not positive definite, or a pivot is not above ``least``.
        """
        if self.is_gpu:
            return _module("skydelta.kernels.cuda.linalg").cholesky(a, least)
        factor = _module("scipy.linalg").cholesky(a, lower=True, check_finite=False)
        check_pivots(np.diagonal(factor), least)
        return factor

    def cholesky_solve(self, factor: Array, b: Array) -> Array:
        """x of L L^T x = b with a factor of `cholesky`: float64, of b's shape (n,) or (n, k)."""
        if self.is_gpu:
            return _module("skydelta.kernels.cuda.linalg").cholesky_solve(factor, b)
        return _module("scipy.linalg").cho_solve((factor, True), b, check_finite=False)

    def gaussian_stack(self, planes: Array, sigma: float, mode: str, truncate: float = 4.0) -> Array:
        """Planes (n, m, m) float32, each smoothed by a Gaussian of ``sigma`` px; ``mode`` as in `scipy.ndimage`."""
        if self.is_gpu:
            return _module("skydelta.kernels.cuda.linalg").gaussian_stack(planes, sigma, mode, truncate)
        return self.ndimage.gaussian_filter(planes, (0, sigma, sigma), mode=mode, truncate=truncate)

    def asarray(self, a: Array, dtype: Any = None) -> Array:
        """``a`` on this backend, C-contiguous; copies only when it must move or change."""
        if not self.is_gpu:
            return np.ascontiguousarray(to_host(a), dtype=dtype)
        if isinstance(a, cupy().ndarray) and (dtype is None or a.dtype == dtype) and a.flags.c_contiguous:
            return a
        with cupy().cuda.Device(self.index):
            if _on_device(type(a)):
                return cupy().ascontiguousarray(cupy().asarray(a, dtype=dtype))
            a = np.ascontiguousarray(a, dtype=dtype)
            return _sent(a) if a.nbytes <= SMALL else cupy().asarray(a)

    def release(self) -> None:
        """Give memory that no array uses back to the device, for others and for larger pieces."""
        if self.is_gpu:
            with cupy().cuda.Device(self.index):
                cupy().get_default_memory_pool().free_all_blocks()

    def synchronize(self) -> None:
        if self.is_gpu:
            cupy().cuda.Device(self.index).synchronize()


CPU = Backend("cpu", asked="cpu")


def check_pivots(diagonal: np.ndarray, least: float) -> None:
    """Raise `numpy.linalg.LinAlgError` where a square of the diagonal (n,) of a Cholesky factor is not above this."""
    if len(diagonal) and not diagonal.min() ** 2 > least:
        raise np.linalg.LinAlgError(f"a pivot of {diagonal.min() ** 2:g}")


SMALL = 1 << 16
"""Bytes that the driver takes into its command buffer: sent so, an array costs a fraction of a staged copy."""


def _sent(a: np.ndarray) -> Array:
    """A small C-contiguous array on the current device; the driver has copied it before this returns."""
    out = cupy().empty(a.shape, a.dtype)
    if a.nbytes:
        out.data.copy_from_host_async(a.ctypes.data, a.nbytes)
    return out


@functools.cache
def _module(name: str) -> ModuleType:
    return importlib.import_module(name)


@functools.cache
def cupy() -> ModuleType:
    """The cupy module.

    Raises
    ------
    DeviceError
        cupy is not installed.
    """
    try:
        return importlib.import_module("cupy")
    except ImportError as e:
        raise DeviceError(f"device cuda: cupy cannot be imported ({e}); install skydelta[gpu]") from None


@functools.cache
def cuda_device_count() -> tuple[int, str]:
    """Number of usable CUDA devices and, when it is 0, why."""
    try:
        n = int(cupy().cuda.runtime.getDeviceCount())
    except DeviceError as e:
        return 0, str(e)
    except Exception as e:  # cupy raises CUDARuntimeError without a driver
        return 0, f"no CUDA device: {e}"
    return n, "" if n else "no CUDA device"


@functools.cache
def _say_fallback(why: str) -> None:
    log.info("device auto: using the CPU (%s)", why)


def resolve(device: str = "auto") -> Backend:
    """Turn ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` into a Backend.

    Raises
    ------
    ConfigError
        The name is none of these.
    DeviceError
        ``cuda`` was asked for and is missing, or N does not exist.
    """
    if device == "cpu":
        return Backend("cpu", asked=device)
    name, _, number = device.partition(":")
    if device != "auto" and (name != "cuda" or (number and not number.isdigit())):
        raise ConfigError(f"device {device!r}: allowed are auto, cpu, cuda, cuda:N")
    count, why = cuda_device_count()
    if device == "auto" and count == 0:
        _say_fallback(why)
        return Backend("cpu", asked=device)
    index = int(number or 0)
    if count == 0:
        raise DeviceError(f"device {device!r} asked for, but {why}")
    if index >= count:
        raise DeviceError(f"device {device!r} asked for, but the devices are cuda:0 to cuda:{count - 1}")
    return Backend("cuda", index, asked=device)


def backend_of(array: Array) -> Backend:
    """The backend on which an array lives."""
    return _cuda(array.device.id) if _on_device(type(array)) else CPU


@functools.cache
def _cuda(index: int) -> Backend:
    return Backend("cuda", int(index), asked="cuda")


_kinds: dict[type, bool] = {}


def _on_device(kind: type) -> bool:
    """Whether arrays of this type live on a device; asked of the type, because an array builds a table to answer."""
    if kind not in _kinds:
        _kinds[kind] = hasattr(kind, "__cuda_array_interface__")
    return _kinds[kind]


def to_host(a: Array) -> np.ndarray:
    """``a`` as a numpy array; the one way from a device to the host."""
    return a.get() if _on_device(type(a)) else np.asarray(a)
