# SPDX-License-Identifier: BSD-3-Clause
"""The devices that share one piece of work: CUDA devices, or threads that stand for devices on a CPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from skydelta.errors import DeviceError
from skydelta.kernels.backend import Array, Backend, backend_of, cuda_device_count, cupy

SHARE = 0.8
"""Part of the memory that one piece of work may plan with."""


@dataclass(frozen=True)
class DeviceSet:
    """Devices in a fixed order.

    Attributes
    ----------
    devices : tuple of Backend
        One kind; on a CPU, as many times the CPU as devices are simulated.
    """

    devices: tuple[Backend, ...]

    @classmethod
    def of(cls, backend: Backend, count: int = 1) -> DeviceSet:
        """``count`` devices, beginning with ``backend``.

        Raises
        ------
        DeviceError
            There are not as many CUDA devices.
        """
        if not backend.is_gpu:
            return cls((backend,) * count)
        present, _ = cuda_device_count()
        if backend.index + count > present:
            raise DeviceError(f"{count} CUDA devices from {backend.name} asked for, but there are {present}")
        return cls(tuple(Backend("cuda", backend.index + i, backend.asked) for i in range(count)))

    @classmethod
    def at_home(cls, backend: Backend) -> DeviceSet:
        """The device itself, or as many threads of the CPU as compiled kernels have here."""
        return cls.of(backend, 1 if backend.is_gpu else numba.get_num_threads())

    def __len__(self) -> int:
        return len(self.devices)

    def bands(self, count: int) -> list[range]:
        """``count`` pieces of work in contiguous bands, one for each device."""
        return [range(count * i // len(self), count * (i + 1) // len(self)) for i in range(len(self))]

    def memory_budget(self) -> int:
        """Bytes that each device may plan with."""
        return min(_memory(device) for device in self.devices) // (1 if self.devices[0].is_gpu else len(self))


def _memory(device: Backend) -> int:
    if not device.is_gpu:
        return int(SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with cupy().cuda.Device(device.index):
        free, _ = cupy().cuda.runtime.memGetInfo()
        return int(SHARE * (free + cupy().get_default_memory_pool().free_bytes()))


@contextlib.contextmanager
def active(device: Backend, stream: Any = None) -> Iterator[None]:
    """Make a device current, and a stream of it."""
    if not device.is_gpu:
        yield
        return
    with cupy().cuda.Device(device.index), stream or contextlib.nullcontext():
        yield


def streams(device: Backend, count: int) -> list[Any]:
    """Streams that run side by side; on the CPU, None for each."""
    if not device.is_gpu:
        return [None] * count
    with active(device):
        return [cupy().cuda.Stream(non_blocking=True) for _ in range(count)]


def pinned(size: int) -> np.ndarray:
    """uint8 (size,) of page-locked host memory, which a device copies from without staging; uninitialised.

    It comes from a pool and goes back there when the array is collected: wait for copies from it before.
    """
    return np.frombuffer(cupy().cuda.alloc_pinned_memory(max(size, 1)), np.uint8, size)


def page_locked(size: int, device: Backend) -> np.ndarray:
    """As `pinned` where a device is to get it; on the CPU plain memory."""
    return pinned(size) if device.is_gpu else np.empty(size, np.uint8)


def send(place: np.ndarray, device: Backend) -> Array:
    """uint8 (n,) of `page_locked` on a device; under way on the current stream: keep ``place`` until that ends."""
    if not device.is_gpu:
        return device.asarray(place)
    with active(device):
        there = cupy().empty(place.size, np.uint8)
        there.set(place, cupy().cuda.get_current_stream())
    return there


def constant(values: np.ndarray, device: Backend) -> Array:
    """An array that stays on a device and is only read: on any stream from now on."""
    with active(device):
        there = device.asarray(values)
        if device.is_gpu:
            cupy().cuda.get_current_stream().synchronize()
        return there


def copy_to(array: Array, device: Backend) -> Array:
    """``array`` on ``device``, C-contiguous; between CUDA devices without the host."""
    source = backend_of(array)
    if not (device.is_gpu and source.is_gpu and source.index != device.index):
        return device.asarray(array)
    with active(source):
        array = cupy().ascontiguousarray(array)
        cupy().cuda.get_current_stream().synchronize()
    with active(device):
        copy = cupy().array(array)
        cupy().cuda.get_current_stream().synchronize()  # before the source may be freed
        return copy


def capture(device: Backend, function: Callable[[], None]) -> Callable[[], None]:
    """Record the launches of a function once, to replay them without the cost of launching each.

    The function must work on arrays that stay alive, allocate nothing that outlives it and wait for nothing. It runs
    once before it is recorded, so that everything it needs is compiled. On the CPU it is returned as it is.
    """
    if not device.is_gpu:
        return function
    (stream,) = streams(device, 1)
    with active(device, stream):
        function()
        stream.synchronize()
        stream.begin_capture()
        try:
            function()
        finally:
            graph = stream.end_capture()

    def replay() -> None:
        with active(device, stream):
            graph.launch(stream)
            stream.synchronize()

    return replay
