# SPDX-License-Identifier: BSD-3-Clause
"""Compile CUDA without a GPU, with the compiler that cupy uses at run time.

It runs in a process of its own with a time limit: after a failed CUDA call in the same process it can hang.
"""

import io
import json
import re
import subprocess
import sys
from dataclasses import dataclass

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")
_PROPERTIES = r"Function properties for {}\s.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers"


@dataclass(frozen=True)
class Compiled:
    """One function for one architecture; spill in bytes."""

    expression: str
    arch: str
    registers: int
    spill: int


def compile_for(text, expressions, architectures=ARCHITECTURES, options=("-std=c++17",), timeout=240):
    """Compile a resolved source for several architectures.

    Parameters
    ----------
    text : str
        Without local includes (`skydelta.kernels.core.source.Source.text`).
    expressions : sequence of str
        Functions to make, such as ``resample<3,true>``.

    Returns
    -------
    list of Compiled

    Raises
    ------
    RuntimeError
        The compiler's messages.
    """
    job = {"text": text, "expressions": list(expressions), "arch": list(architectures), "options": list(options)}
    command = [sys.executable, __file__]
    done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [Compiled(*row) for row in json.loads(done.stdout)]


def _compile(text, expressions, arch, options):
    from cuda.core import Program, ProgramOptions

    fma = "--fmad=false" not in options
    chosen = ProgramOptions(arch=arch, std="c++17", fma=fma, ptxas_options=["-v"], include_path=_headers())
    log = io.StringIO()
    made = Program(text, "c++", chosen).compile("cubin", name_expressions=tuple(expressions), logs=log)
    report = log.getvalue()
    rows = []
    for expression in expressions:
        mangled = made.symbol_mapping[expression].decode()
        found = re.search(_PROPERTIES.format(re.escape(mangled)), report, re.DOTALL)
        stores, loads, registers = map(int, found.groups())
        rows.append((expression, arch, registers, max(stores, loads)))
    return rows


def _headers():
    from cuda.pathfinder import find_nvidia_header_directory

    found = (find_nvidia_header_directory(name) for name in ("cudart", "cccl"))
    return [path for path in found if path]


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    try:
        rows = [r for a in asked["arch"] for r in _compile(asked["text"], asked["expressions"], a, asked["options"])]
    except Exception as e:
        sys.exit(f"{e}")
    json.dump(rows, sys.stdout)
