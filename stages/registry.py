# SPDX-License-Identifier: BSD-3-Clause
"""Stage names to classes; third parties add theirs by the entry-point group ``skydelta.stages``."""

from __future__ import annotations

import importlib
import logging
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from skydelta.errors import ConfigError
from skydelta.stages.base import Stage

log = logging.getLogger(__name__)

BUILTIN = {
    "load": "skydelta.stages.load:Load",
    "load_kernel": "skydelta.stages.load:LoadKernel",
    "background": "skydelta.stages.background:Background",
    "psf": "skydelta.stages.psf:MeasurePsf",
    "register": "skydelta.stages.register:Register",
    "align": "skydelta.stages.align:Align",
    "match": "skydelta.stages.match:Match",
    "difference": "skydelta.stages.difference:Difference",
    "detect": "skydelta.stages.detect:Detect",
    "fit": "skydelta.stages.fit:Fit",
    "cosmic_rays": "skydelta.stages.cosmicrays:CosmicRays",
    "streaks": "skydelta.stages.streaks:Streaks",
    "inject": "skydelta.stages.inject:Inject",
    "recover": "skydelta.stages.recover:Recover",
    "write": "skydelta.stages.write:Write",
    "write_image": "skydelta.stages.write:WriteImage",
    "stack": "skydelta.stages.stack:Stack",
    "write_stack": "skydelta.stages.stack.write:WriteStack",
    "load_table": "skydelta.stages.tables:LoadTable",
    "zero_point": "skydelta.stages.zeropoint:ZeroPoint",
    "write_catalog": "skydelta.stages.tables:WriteCatalog",
    "sources": "skydelta.stages.sources:Sources",
}
"""Built-in stages in the order of the main job, then the others; listing them imports nothing."""


@cache
def plugins() -> dict[str, str]:
    """Stages of installed third parties: name to ``module:Class``."""
    return {e.name: e.value for e in entry_points(group="skydelta.stages")}


def names() -> list[str]:
    return [*BUILTIN, *sorted(set(plugins()) - set(BUILTIN))]


@cache
def get(name: str) -> type[Stage[Any]]:
    """The class of a stage.

    Raises
    ------
    ConfigError
        No such stage, or its module cannot be imported.
    """
    target = BUILTIN.get(name) or plugins().get(name)
    if target is None:
        raise ConfigError(f"stage {name!r} is unknown; known: {', '.join(names())}")
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as e:
        raise ConfigError(f"stage {name!r} ({target}) cannot be loaded: {e}") from e
