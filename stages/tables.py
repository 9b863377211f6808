# SPDX-License-Identifier: BSD-3-Clause
"""Tables of a workflow: read one, write a catalogue."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from skydelta.errors import ConfigError
from skydelta.io.catalog import Catalog
from skydelta.io.exposure import Exposure
from skydelta.io.observation import observed
from skydelta.stages.base import Context, Port, Stage, StageConfig
from skydelta.stages.load import under
from skydelta.stages.sources import check_positions, places_of


class LoadTableConfig(StageConfig):
    """Nothing can be set."""


class LoadTable(Stage[LoadTableConfig]):
    """A table of positions: .ecsv, .csv, .fits, .parquet or .vot by its suffix.

    Raises
    ------
    InputError
        The file is missing or no table, or a position in it is none (`check_positions`).
    """

    name = "load_table"
    version = 1
    inputs = {"path": Port(str, "file of the table")}
    outputs = {"table": Port(Catalog, "what was read", replaces="path")}

    def run(self, ctx: Context, *, path: str) -> dict[str, Any]:  # type: ignore[override]
        table = Catalog.of_file(under(ctx.base, path))
        if places_of(table):
            check_positions(table, path)
        ctx.metric("rows", len(table))
        return {"table": table}


class WriteCatalogConfig(StageConfig):
    """What is written."""

    regions: bool = Field(False, description="Also write catalog.reg, regions for DS9.")
    votable: bool = Field(False, description="Also write catalog.vot, a VOTable.")


class WriteCatalog(Stage[WriteCatalogConfig]):
    """``catalog.ecsv`` and ``catalog.parquet`` of an image, into the folder of the item; no pixels."""

    name = "write_catalog"
    version = 1
    inputs = {
        "catalog": Port(Catalog, "what was measured"),
        "image": Port(Exposure, "on which; its time, place and pixel scale go into the receipt"),
    }
    outputs = {"files": Port(list, "paths of what was written")}

    def products(self) -> tuple[str, ...]:
        more = ((self.config.regions, "catalog.reg"), (self.config.votable, "catalog.vot"))
        return ("catalog.ecsv", "catalog.parquet", *(name for wanted, name in more if wanted))

    def run(self, ctx: Context, *, catalog: Catalog, image: Exposure) -> dict[str, Any]:  # type: ignore[override]
        if ctx.out is None:
            raise ConfigError("write_catalog: no folder to write to; use it in a workflow, or the catalogue's save")
        ctx.out.mkdir(parents=True, exist_ok=True)
        for name in self.products():
            catalog.save(ctx.out / name)
        for fact, value in observed(image).items():
            ctx.metric(fact, value)
        return {"files": [ctx.out / name for name in self.products()]}
