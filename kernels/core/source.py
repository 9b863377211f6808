# SPDX-License-Identifier: BSD-3-Clause
"""CUDA sources: loaded from ``kernels/cuda``, local includes resolved, errors pointing at the real file."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from importlib import resources

PACKAGE = "skydelta.kernels.cuda"
_LOCAL_INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
_ONCE = re.compile(r"\s*#\s*pragma\s+once\b")


@dataclass(frozen=True)
class Source:
    """One self-contained translation unit.

    Attributes
    ----------
    name : str
        File name, or the name of generated text.
    text : str
        Everything inlined but system headers.
    digest : str
        sha256 of the text, hexadecimal.
    """

    name: str
    text: str
    digest: str


def read(file: str) -> str:
    """Text of a file of ``kernels/cuda``.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    """
    return resources.files(PACKAGE).joinpath(file).read_text(encoding="utf-8")


def resolve(name: str, text: str) -> Source:
    """Inline the local includes of a text, each file once, with ``#line`` markers at every change of file.

    Raises
    ------
    FileNotFoundError
        An included file does not exist.
    """
    lines = _inlined(name, text, {name})
    resolved = "\n".join(lines) + "\n"
    return Source(name, resolved, hashlib.sha256(resolved.encode()).hexdigest())


@functools.cache
def load(file: str) -> Source:
    """A file of ``kernels/cuda`` as one translation unit."""
    return resolve(file, read(file))


def _inlined(name: str, text: str, seen: set[str]) -> list[str]:
    # The marker holds no absolute path: the digest, and with it the compiler's disk cache, is the same everywhere.
    shown = f"kernels/cuda/{name}"
    lines = [f'#line 1 "{shown}"']
    for number, line in enumerate(text.splitlines(), start=1):
        include = _LOCAL_INCLUDE.match(line)
        if include:
            file = include.group(1)
            if file not in seen:
                seen.add(file)
                lines += _inlined(file, read(file), seen)
            lines.append(f'#line {number + 1} "{shown}"')
        else:
            lines.append("" if _ONCE.match(line) else line)
    return lines
