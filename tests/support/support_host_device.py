# SPDX-License-Identifier: BSD-3-Clause
"""Launchers and whole kernels of ``kernels/cuda`` on the host, under the address and undefined-behaviour sanitizers."""

import os
import re
import shutil
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support_host_cuda import FLAGS, SANITIZERS, checked, precompiled

from skydelta.kernels.backend import Backend
from skydelta.kernels.core.source import load
from skydelta.kernels.core.spec import registry

# nvcc gives its own warnings on the kernels: none here. Building takes longer than running, hence no optimisation.
BUILD = ["-O0" if flag == "-O1" else flag for flag in FLAGS if not flag.startswith("-W")]
_BUILT = {}
"""Folders of the programs of this process by compiler and source; their inputs are read from files."""
_HEADER = Path(__file__).with_name("host_device.h")
_DYNAMIC = re.compile(r"extern __shared__ (\w+) (\w+)\[\];")


class DeviceArray(np.ndarray):
    """An array of the host whose address launchers may ask for; every allocation begins at 0."""

    @property
    def data(self):
        return SimpleNamespace(ptr=_offset(self))


class HostArrays:
    """NumPy as launchers use it; what is not written to shows: memory comes filled with nonsense."""

    def __getattr__(self, name):
        return getattr(np, name)

    @staticmethod
    def ascontiguousarray(a):
        return np.ascontiguousarray(a).view(type(a))

    @staticmethod
    def empty(shape, dtype=float):
        made = np.empty(shape, dtype)
        made.reshape(-1).view(np.uint8)[...] = 0xA5
        return made

    def empty_like(self, a):
        return self.empty(a.shape, a.dtype)


class HostBackend(Backend):
    """The CPU under the name of the device."""

    xp = HostArrays()


class HostDevice:
    """What stands for the device in launchers.

    Parameters
    ----------
    folder : Path
        Where kernels are built and launched; each is built once in this process.
    shared_memory : int
        Bytes a block may have, as launchers are told.
    """

    def __init__(self, folder, shared_memory=227 << 10):
        self.folder = folder
        self.shared_memory = shared_memory
        self.launched = []
        """Names of the kernels that ran, in order."""

    def attach(self, monkeypatch, launcher):
        """Let the launchers of a module launch here.

        Parameters
        ----------
        monkeypatch : pytest.MonkeyPatch
        launcher : str
            Name of the module.
        """
        module = import_module(launcher)
        monkeypatch.setattr(module, "kernel", self.kernel)
        monkeypatch.setattr(module, "backend_of", lambda array: HostBackend("cpu", asked="cpu"))
        if hasattr(module, "shared_memory"):
            monkeypatch.setattr(module, "shared_memory", lambda: self.shared_memory)

    def kernel(self, file, name, template_args=()):
        """As ``skydelta.kernels.core.module.kernel``."""
        entry = f"{name}<{','.join(template_args)}>" if template_args else name

        def launch(grid, block, args, shared_mem=0):
            self.launched.append(entry)
            self._run(self._built(file, entry), entry, grid, block, args, shared_mem)

        return launch

    def _built(self, file, entry):
        """The program that holds an entry: one for all entries of a file, which takes little more than one of them."""
        compiler = os.environ.get("CXX") or shutil.which("g++")
        if not compiler:
            pytest.skip("no C++ compiler (g++) to run CUDA kernels on the host")
        text = _DYNAMIC.sub(r"\1* const \2 = reinterpret_cast<\1*>(host::dynamic);", load(file).text)
        entries = sorted({entry, *_registered(file)})
        choice = "".join(f'  if (asked == "{e}") return host::launch({e});\n' for e in entries)
        main = f"\nint main(int, char** words) {{\n  const std::string asked = words[1];\n{choice}  return 2;\n}}\n"
        source = f'#include "host_device.h"\n{text}{main}'
        if (compiler, source) not in _BUILT:
            folder = self.folder / f"{file}_{len(_BUILT)}"
            folder.mkdir(exist_ok=True)
            (folder / "main.cpp").write_text(source)
            command = [compiler, *BUILD, *SANITIZERS]
            header = precompiled(
                self.folder, command, "host_device.h", _HEADER.read_text().replace("#pragma once\n", "")
            )
            checked([*command, f"-I{header}", "main.cpp", "-o", "main"], folder)
            _BUILT[compiler, source] = folder
        return _BUILT[compiler, source]

    @staticmethod
    def _run(folder, entry, grid, block, args, shared_mem):
        buffers, arguments = {}, []
        for value in args:
            if isinstance(value, np.ndarray):
                base = _base(value)
                number = list(buffers).index(id(base)) if id(base) in buffers else len(buffers)
                buffers[id(base)] = base
                arguments.append(f"buffer {number} {_offset(value)}")
            else:
                raw = value.tobytes()  # of NumPy's type: launchers cast all scalars
                arguments.append(f"scalar {len(raw)} {' '.join(map(str, raw))}")
        sizes = [a.nbytes for a in buffers.values()]
        numbers = [*(*grid, 1)[:2], *(*block, 1)[:2], shared_mem, len(sizes), *sizes, len(arguments)]
        (folder / "launch.txt").write_text("\n".join([*map(str, numbers), *arguments, ""]))
        (folder / "buffers.in").write_bytes(b"".join(a.tobytes() for a in buffers.values()))
        checked(["./main", entry], folder)
        made, at = (folder / "buffers.out").read_bytes(), 0
        for base in buffers.values():
            there = np.frombuffer(made, np.uint8, base.nbytes, at)
            at += base.nbytes
            if base.flags.writeable:
                base.reshape(-1).view(np.uint8)[...] = there
            else:
                assert base.tobytes() == there.tobytes(), "a kernel writes to what is not to be written to"


def _registered(file):
    """Expressions of all entries of a file of kernels/cuda."""
    entries = (entry for spec in registry().values() for entry in spec.entries if entry.file == file)
    return {expression for entry in entries for expression in entry.expressions()}


def _base(array):
    """The allocation that an array lies in."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _offset(array):
    """Bytes from the beginning of its allocation to an array."""
    return array.ctypes.data - _base(array).ctypes.data
