# SPDX-License-Identifier: BSD-3-Clause
"""Image differencing for astronomy, from the bytes of two FITS files to a catalogue of what changed."""

from __future__ import annotations

import importlib
from pathlib import Path as _Path
from typing import Any

__version__ = "0.1.0"

# A checkout works without installation: its top-level folders are the sub-packages.
_root = _Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").is_file() and (_root / "pipeline").is_dir():
    __path__.append(str(_root))

_PUBLIC: dict[str, str] = {
    "Exposure": "skydelta.io.exposure:Exposure",
    "FitResult": "skydelta.stages.stampfit:FitResult",
    "MaskPlanes": "skydelta.io.planes:MaskPlanes",
    "MatchKernel": "skydelta.io.matchkernel:MatchKernel",
    "detect": "skydelta.stages.findsources:detect",
    "fit": "skydelta.stages.stampfit:fit",
    "noise_correlation": "skydelta.stages.align.correlation:noise_correlation",
    "open": "skydelta.io.fits.reader:open_file",
    "read": "skydelta.io.read:read",
    "read_many": "skydelta.io.many:read_many",
    "write": "skydelta.io.fits.writer:write",
    "reproject": "skydelta.stages.align.reproject:reproject",
    "run": "skydelta.pipeline.runner:run",
    "simulate": "skydelta.pipeline.simulate:simulate",
}

_STAGES = ("background", "register", "align", "psf", "match", "difference", "stack", "sources")
"""Stages that are functions here: inputs by position or name, settings by keyword."""

__all__ = ["__version__", *_PUBLIC, *_STAGES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _STAGES:
        from skydelta.stages import base, registry

        value = base.as_function(registry.get(name))
    elif name in _PUBLIC:
        module, _, attribute = _PUBLIC[name].partition(":")
        value = getattr(importlib.import_module(module), attribute)
    else:
        raise AttributeError(f"module 'skydelta' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
