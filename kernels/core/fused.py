# SPDX-License-Identifier: BSD-3-Clause
"""Chains of per-pixel steps in one pass over memory.

A step is a scalar function, written once for each machine: a Numba function for the CPU and an ``HD`` function of a
``.cuh``. A `FusedKernel` strings steps together by the names of their values; a value that only later steps read never
touches memory. Every value is rounded to its declared type at the end of its step and nothing is contracted (no fused
multiply-add), so the chain gives what its steps give one by one, and the GPU what the CPU gives.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skydelta.kernels.backend import Array, backend_of
from skydelta.kernels.core.module import from_source
from skydelta.kernels.core.source import Source, resolve
from skydelta.kernels.cpu.jit import parallel, prange

C_TYPES = {"float32": "float", "float64": "double", "int32": "int", "bool": "bool", "complex64": "Complex"}
BLOCK = 256

_chains: dict[str, FusedKernel] = {}


@dataclass(frozen=True)
class Step:
    """One per-pixel operation.

    Attributes
    ----------
    name : str
    inputs, outputs : tuple of str
        Names of the values read and written, in the order of the arguments.
    twin : callable
        Numba function ``twin(*inputs) -> output`` (a tuple when there are several).
    device : str
        The same as a device function ``void device(inputs..., outputs&...)``.
    file : str
        The ``.cuh`` of ``kernels/cuda`` that holds it.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    twin: Callable[..., Any]
    device: str
    file: str


@dataclass(frozen=True, eq=False)
class FusedKernel:
    """One loop on the CPU, one launch on CUDA, for a chain of steps.

    Attributes
    ----------
    name : str
        An identifier, unique in the package.
    steps : tuple of Step
    types : mapping of str to str
        One of ``C_TYPES`` for every value of the chain.
    outputs : tuple of str
        Values written to memory.
    scalars : tuple of str
        Values that are one number for the whole image.
    per_tile : tuple of str
        Values that are one number for each image of a stack: arrays (n,) beside planes (n, ...). What no step makes and
        is named in neither is an input plane.

    Raises
    ------
    ValueError
        A value has no type, a step writes a scalar, or an output is never made.
    """

    name: str
    steps: tuple[Step, ...]
    types: Mapping[str, str]
    outputs: tuple[str, ...]
    scalars: tuple[str, ...] = ()
    per_tile: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        made = {name for step in self.steps for name in step.outputs}
        named = made.union(*(step.inputs for step in self.steps), self.scalars, self.per_tile, self.outputs)
        if untyped := sorted(n for n in named if self.types.get(n) not in C_TYPES):
            raise ValueError(f"fused kernel {self.name}: no type in {', '.join(C_TYPES)} for {', '.join(untyped)}")
        if written := sorted(made & {*self.scalars, *self.per_tile}):
            raise ValueError(f"fused kernel {self.name}: a step writes the scalar {', '.join(written)}")
        if missing := sorted(set(self.outputs) - made):
            raise ValueError(f"fused kernel {self.name}: no step makes the output {', '.join(missing)}")
        if _chains.setdefault(self.name, self) is not self:
            raise ValueError(f"fused kernel {self.name} is defined twice")

    @functools.cached_property
    def planes(self) -> tuple[str, ...]:
        """Input planes, in the order of first use."""
        made: set[str] = {*self.scalars, *self.per_tile}
        found: dict[str, None] = {}
        for step in self.steps:
            found.update(dict.fromkeys(n for n in step.inputs if n not in made))
            made.update(step.outputs)
        return tuple(found)

    def __call__(self, *, out: Mapping[str, Array] | None = None, **values: Any) -> dict[str, Array]:
        """Run the chain.

        Parameters
        ----------
        out : mapping of str to array, optional
            C-contiguous arrays to write outputs to, of the planes' shape and the declared types.
        **values
            Every input plane (one shape, one device, the declared types), number and scalar, by name.

        Returns
        -------
        dict of str to array
            The outputs, new arrays where ``out`` gives none.

        Raises
        ------
        ValueError
            A value is missing, unknown, or a plane has another shape or type.
        """
        if set(values) != {*self.planes, *self.per_tile, *self.scalars}:
            raise ValueError(
                f"fused kernel {self.name} takes {', '.join((*self.planes, *self.per_tile, *self.scalars))}"
            )
        first = values[self.planes[0]]
        given = dict(out or {})
        shapes = dict.fromkeys(self.planes, first.shape) | dict.fromkeys(self.per_tile, first.shape[:1])
        for name, array in [*((n, values[n]) for n in shapes), *given.items()]:
            shape = shapes.get(name, first.shape)
            if array.shape != shape or array.dtype != self.types[name]:
                raise ValueError(
                    f"fused kernel {self.name}: {name} is {array.dtype} {array.shape}, "
                    f"expected {self.types[name]} {shape}"
                )
        if strided := sorted(n for n, array in given.items() if not array.flags.c_contiguous):
            raise ValueError(f"fused kernel {self.name}: {', '.join(strided)} to write to is not C-contiguous")
        backend = backend_of(first)
        planes = [backend.xp.ascontiguousarray(values[name]) for name in shapes]
        scalars = [np.dtype(self.types[name]).type(values[name]) for name in self.scalars]
        made = [given[n] if n in given else backend.xp.empty(first.shape, self.types[n]) for n in self.outputs]
        if first.size:
            run = self._on_device if backend.is_gpu else self._on_cpu
            run(planes, scalars, made)
        return dict(zip(self.outputs, made, strict=True))

    def _on_cpu(self, arrays: list[Array], scalars: list[Any], out: list[Array]) -> None:
        planes, numbers = arrays[: len(self.planes)], arrays[len(self.planes) :]
        flat = [plane.reshape(-1, plane.shape[-1]) for plane in (*planes, *out)]
        if numbers:
            numbers.append(flat[0].shape[0] // planes[0].shape[0])  # rows of one image of the stack
        self.loop(*flat[: len(planes)], *numbers, *scalars, *flat[len(planes) :])

    def _on_device(self, arrays: list[Array], scalars: list[Any], out: list[Array]) -> None:
        launch = from_source(self.source, self.entry, fused_multiply_add=False)
        size = arrays[0].size
        if self.per_tile:
            arrays.append(np.int64(size // arrays[0].shape[0]))  # pixels of one image of the stack
        launch((-(-size // BLOCK),), (BLOCK,), (*arrays, *scalars, *out, np.int64(size)))

    @functools.cached_property
    def loop(self) -> Any:
        """The CPU loop, compiled by Numba on first call and kept on disk like any twin."""
        body = [f"v_{n} = in_{n}[y, x]" for n in self.planes]
        body += [f"v_{n} = in_{n}[y // rows]" for n in self.per_tile]
        for i, step in enumerate(self.steps):
            body.append(f"{_list(step.outputs)} = twin_{i}({_list(step.inputs)})")
            body += [f"v_{n} = np.{self.types[n]}(v_{n})" for n in step.outputs]
        body += [f"out_{n}[y, x] = v_{n}" for n in self.outputs]
        arguments = [*(f"in_{n}" for n in (*self.planes, *self.per_tile)), *(["rows"] if self.per_tile else [])]
        arguments += [*(f"v_{n}" for n in self.scalars), *(f"out_{n}" for n in self.outputs)]
        # Numba keys its cache by the function's name and this file; the digest renews it when a twin's module changes.
        files = sorted({inspect.getfile(_python(step.twin)) for step in self.steps})
        digest = hashlib.sha256("\n".join(body).encode() + b"".join(Path(f).read_bytes() for f in files)).hexdigest()
        function = f"fused_{self.name}_{digest[:16]}"
        text = (
            f"def {function}({', '.join(arguments)}):\n"
            f"    for y in prange(in_{self.planes[0]}.shape[0]):\n"
            f"        for x in range(in_{self.planes[0]}.shape[1]):\n"
            + "".join(f"            {line}\n" for line in body)
        )
        namespace = {"__name__": __name__, "np": np, "prange": prange}
        namespace |= {f"twin_{i}": step.twin for i, step in enumerate(self.steps)}
        exec(compile(text, __file__, "exec"), namespace)
        return parallel(namespace[function])

    @property
    def entry(self) -> str:
        """Name of the ``__global__`` function."""
        return f"fused_{self.name}"

    @functools.cached_property
    def source(self) -> Source:
        """The CUDA kernel."""
        kind = {name: C_TYPES[t] for name, t in self.types.items()}
        arguments = [
            *(f"const {kind[n]}* __restrict__ in_{n}" for n in (*self.planes, *self.per_tile)),
            *(["const long long pixels"] if self.per_tile else []),
            *(f"const {kind[n]} v_{n}" for n in self.scalars),
            *(f"{kind[n]}* __restrict__ out_{n}" for n in self.outputs),
            "const long long size",
        ]
        body = ["const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;", "if (i >= size) return;"]
        body += [f"{kind[n]} v_{n} = in_{n}[i];" for n in self.planes]
        body += [f"{kind[n]} v_{n} = in_{n}[i / pixels];" for n in self.per_tile]
        made = dict.fromkeys(n for step in self.steps for n in step.outputs if n not in self.planes)
        body += [f"{kind[n]} v_{n};" for n in made]
        for step in self.steps:
            # Results go through fresh names: a step may replace its own input.
            fresh = [f"new_{n}" for n in step.outputs]
            declared = " ".join(f"{kind[n]} new_{n};" for n in step.outputs)
            assigned = " ".join(f"v_{n} = new_{n};" for n in step.outputs)
            body.append(f"{{ {declared} {step.device}({_list(step.inputs)}, {', '.join(fresh)}); {assigned} }}")
        body += [f"out_{n}[i] = v_{n};" for n in self.outputs]
        files = dict.fromkeys(("common.cuh", *(step.file for step in self.steps)))
        includes = "".join(f'#include "{file}"\n' for file in files)
        code = "".join(f"    {line}\n" for line in body)
        return resolve(self.entry, f"{includes}__global__ void {self.entry}({', '.join(arguments)})\n{{\n{code}}}\n")


def chains() -> dict[str, FusedKernel]:
    """Every fused kernel defined so far, by name."""
    return dict(_chains)


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(f"v_{name}" for name in names)


def _python(function: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(function, "py_func", function)
