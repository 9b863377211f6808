# SPDX-License-Identifier: BSD-3-Clause
"""CUDA functions by name: specialised, compiled on first use, kept for each device."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from skydelta.kernels.backend import cupy
from skydelta.kernels.core.source import Source, load

Launch = Callable[..., None]
"""``launch(grid, block, args, shared_mem=0)`` on the current device and stream; up to `shared_memory` bytes."""


def options(fused_multiply_add: bool = True) -> tuple[str, ...]:
    """Compiler options.

    ``SKYDELTA_FMAD=0`` in the environment forbids fused multiply-add everywhere, so that a kernel rounds as its CPU
    twin does: a switch for validation, read once a process.
    """
    return ("-std=c++17",) if fused_multiply_add and _contracting() else ("-std=c++17", "--fmad=false")


@functools.cache
def _contracting() -> bool:
    return os.environ.get("SKYDELTA_FMAD", "1") != "0"


def expression(name: str, template_args: tuple[str, ...] = ()) -> str:
    """Name expression of a function or template: ``resample<3,true>``."""
    return f"{name}<{','.join(template_args)}>" if template_args else name


def kernel(file: str, name: str, template_args: tuple[str, ...] = ()) -> Launch:
    """A function of ``kernels/cuda``, ready to launch on the current device.

    Parameters
    ----------
    file : str
        Such as ``resample.cu``.
    name : str
        The ``__global__`` function or template.
    template_args : tuple of str
        As written in C++.

    Returns
    -------
    callable
        ``launch(grid, block, args, shared_mem=0)``; cast scalars in ``args`` to the exact NumPy type.

    Raises
    ------
    DeviceError
        cupy is not installed.
    """
    return _found(file, name, template_args, options(), cupy().cuda.runtime.getDevice())


@functools.cache
def _found(file: str, name: str, template_args: tuple[str, ...], flags: tuple[str, ...], device: int) -> Launch:
    return _compiled(load(file), expression(name, template_args), flags, device)


def from_source(source: Source, name: str, fused_multiply_add: bool = True) -> Launch:
    """As `kernel`, for any source text."""
    return _compiled(source, name, options(fused_multiply_add), cupy().cuda.runtime.getDevice())


@functools.cache
def _compiled(source: Source, name: str, flags: tuple[str, ...], device: int) -> Any:
    module = cupy().RawModule(code=source.text, options=flags, name_expressions=(name,))
    function = module.get_function(name)
    function.max_dynamic_shared_size_bytes = _shared_memory(device) - function.shared_size_bytes
    return function


def shared_memory() -> int:
    """Bytes of shared memory that a thread block may have on the current device."""
    return _shared_memory(cupy().cuda.runtime.getDevice())


@functools.cache
def _shared_memory(device: int) -> int:
    return int(cupy().cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"])
