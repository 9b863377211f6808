# SPDX-License-Identifier: BSD-3-Clause
"""Run the per-pixel maths of a ``.cuh`` on the host, under the address and undefined-behaviour sanitizers."""

import os
import shutil
import subprocess
from importlib import resources

import numpy as np
import pytest

C_TYPES = {"float32": "float", "float64": "double", "int32": "int", "int64": "long long", "uint8": "unsigned char"}
FLAGS = ["-std=c++17", "-O1", "-g", "-ffp-contract=off", "-fno-fast-math", "-Wall", "-Wextra", "-Werror"]
# A thread id or an atomic of CUDA has no host meaning, hence maths only: support_host_device.py runs whole kernels.
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

_HEADER = """
#include <cstddef>
#include <cstdio>
#include <vector>
template <typename T>
static std::vector<T> load(const char* path, std::size_t n) {
  std::vector<T> v(n);
  std::FILE* f = std::fopen(path, "rb");
  if (!f || std::fread(v.data(), sizeof(T), n, f) != n) throw 1;
  std::fclose(f);
  return v;
}
template <typename T>
static void save(const char* path, const std::vector<T>& v) {
  std::FILE* f = std::fopen(path, "wb");
  if (!f || std::fwrite(v.data(), sizeof(T), v.size(), f) != v.size()) throw 1;
  std::fclose(f);
}
"""
_PROGRAM = """
#include "host_maths.h"
{includes}
int main() {{
  const std::vector<long long> sizes_in = load<long long>("all_sizes", {count});
{declarations}
  {{
{body}
  }}
{results}
  return 0;
}}
"""


_HEADERS = {}
_BUILT = {}
"""Programs of this process by compiler and source: sizes are read from a file, so other data need no other program."""


def run(folder, files, body, inputs, outputs):
    """Compile and run C++ statements that call the functions of ``.cuh`` files.

    Parameters
    ----------
    folder : Path
        Where to build (``tmp_path``).
    files : str or sequence of str
        Of ``kernels/cuda``.
    body : str
        Statements. Every input and output is a pointer of its name; ``n_<name>`` is its number of elements. An access
        outside an array, signed overflow and the like stop the program.
    inputs : dict of str to array
        float32, float64, int32, int64 or uint8.
    outputs : dict of str to (dtype, shape)
        Zero before the body.

    Returns
    -------
    dict of str to array
        The outputs.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        pytest.skip("no C++ compiler (g++ or clang++) to run CUDA maths on the host")
    declared, results, sizes = [], [], []
    for name, value in inputs.items():
        array = np.ascontiguousarray(value)
        array.tofile(folder / f"{name}.in")
        declared += _vector(name, array.dtype, f'load<{{}}>("{name}.in", sizes_in[{len(sizes)}])', len(sizes))
        sizes.append(array.size)
    for name, (dtype, shape) in outputs.items():
        declared += _vector(name, np.dtype(dtype), f"std::vector<{{}}>(sizes_in[{len(sizes)}])", len(sizes))
        sizes.append(int(np.prod(shape)))
        results.append(f'  save("{name}.out", v_{name});')
    np.array(sizes, np.int64).tofile(folder / "all_sizes")
    source = _PROGRAM.format(
        includes="".join(f'#include "{file}"\n' for file in ([files] if isinstance(files, str) else files)),
        count=len(sizes),
        declarations="\n".join(declared),
        body=body,
        results="\n".join(results),
    )
    program = _BUILT.get((compiler, source))
    if program is None or not program.exists():
        (folder / "main.cpp").write_text(source)
        headers = resources.files("skydelta.kernels.cuda")
        own = precompiled(folder, [compiler, *FLAGS, *SANITIZERS], "host_maths.h", _HEADER)
        checked([compiler, *FLAGS, *SANITIZERS, f"-I{own}", f"-I{headers}", "main.cpp", "-o", "main"], folder)
        program = _BUILT[compiler, source] = folder / "main"
    checked([str(program)], folder)
    return {name: np.fromfile(folder / f"{name}.out", dtype).reshape(shape) for name, (dtype, shape) in outputs.items()}


def precompiled(folder, command, name, text):
    """Folder of a header and its form that the compiler need not parse, made once in this process.

    Parameters
    ----------
    folder : Path
        Where to make it.
    command : list of str
        Compiler and flags, those of the programs that include it.
    name, text : str
        Of the header.
    """
    key = (*command, name, text)
    if key not in _HEADERS or not _HEADERS[key].exists():
        own = folder / "header"
        own.mkdir(exist_ok=True)
        (own / name).write_text(text)
        checked([*command, "-x", "c++-header", name, "-o", f"{name}.gch"], own)
        _HEADERS[key] = own
    return _HEADERS[key]


def _vector(name, dtype, made, number):
    kind = C_TYPES[dtype.name]
    return [
        f"  std::vector<{kind}> v_{name} = {made.format(kind)};",
        f"  [[maybe_unused]] {kind}* {name} = v_{name}.data();",
        f"  [[maybe_unused]] const long long n_{name} = sizes_in[{number}];",
    ]


def checked(command, folder):
    """Run a command in a folder; what it says where it fails is the failure's message."""
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
