# SPDX-License-Identifier: BSD-3-Clause
"""The file of a stack, and the stage that writes it into the folder of an item."""

from __future__ import annotations

from typing import Any

import numpy as np
from astropy.io import fits
from astropy.table import Table

from skydelta.errors import ConfigError
from skydelta.io.correlation import NoiseCorrelation
from skydelta.io.exposure import Exposure
from skydelta.io.fits.writer import exposure_hdus, table_hdu, write_hdus
from skydelta.stages.base import Context, Port, Stage
from skydelta.stages.write import Packing

FILE = "stack.fits"


def stack_hdus(
    stacked: Exposure, coverage: Exposure, weight: Exposure, correlation: NoiseCorrelation, table: Table
) -> list[fits.ImageHDU]:
    """SCI, VAR, DQ, NEXP (exposures of each pixel), SUMW (sum of weights), NOISECOR and the table INPUTS."""
    further = {"NEXP": coverage.image.astype(np.int32), "SUMW": weight.image}
    return [*exposure_hdus(stacked, further), correlation.hdu(), table_hdu(table, "INPUTS")]


class WriteStack(Stage[Packing]):
    """``stack.fits`` with SCI, VAR, DQ, NEXP, SUMW, NOISECOR and the table INPUTS."""

    name = "write_stack"
    version = 2
    inputs = {
        "stacked": Port(Exposure, "the stack"),
        "coverage": Port(Exposure, "number of exposures that each pixel is made of"),
        "weight": Port(Exposure, "sum of their weights"),
        "correlation": Port(NoiseCorrelation, "how resampling correlates the noise, in tiles"),
        "table": Port(Table, "what was done to each exposure"),
    }
    outputs = {"files": Port(list, "paths of what was written")}

    def products(self) -> tuple[str, ...]:
        return (FILE,)

    def run(  # type: ignore[override]
        self,
        ctx: Context,
        *,
        stacked: Exposure,
        coverage: Exposure,
        weight: Exposure,
        correlation: NoiseCorrelation,
        table: Table,
    ) -> dict[str, Any]:
        if ctx.out is None:
            raise ConfigError("write_stack: no folder to write to; use it in a workflow")
        ctx.out.mkdir(parents=True, exist_ok=True)
        write_hdus(ctx.out / FILE, stack_hdus(stacked, coverage, weight, correlation, table), self.config.compression)
        return {"files": [ctx.out / FILE]}
