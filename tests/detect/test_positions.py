# SPDX-License-Identifier: BSD-3-Clause
"""Tables of positions: names of columns in any letter case, and which of two kinds of positions counts."""

import numpy as np
import pytest
from astropy.wcs import WCS
from support_sources import exposure

from skydelta.io.catalog import Catalog
from skydelta.kernels.backend import CPU
from skydelta.stages.base import Context
from skydelta.stages.sources import Sources


def wcs():
    out = WCS(naxis=2)
    out.wcs.ctype, out.wcs.crval, out.wcs.crpix = ["RA---TAN", "DEC--TAN"], [150.0, 60.0], [100.0, 120.0]
    out.wcs.cdelt, out.wcs.cunit = [-2e-4, 1e-4], ["deg", "deg"]
    return out


@pytest.mark.parametrize("names", [("X", "Y", "ID"), ("RA", "Dec", "Object"), ("Ra", "DEC", "Id")])
def test_columns_of_positions_may_be_in_any_letter_case(rng, names):
    e = exposure(rng.normal(0, 1, (240, 200)), wcs=wcs())
    at = (110.0, 120.0) if names[0] == "X" else wcs().pixel_to_world_values(110.0, 120.0)
    got = Sources()(e, Catalog(dict(zip(names, ([at[0]], [at[1]], [17]), strict=True))))
    np.testing.assert_allclose((got["x"].value[0], got["y"].value[0]), (110, 120), atol=1e-6)
    assert got["id"][0] == 17


def test_positions_in_pixels_and_on_the_sky_are_said(rng):
    """Those of another image's catalogue: its pixels are not those of this one."""
    e = exposure(rng.normal(0, 1, (240, 200)), wcs=wcs())
    ra, dec = wcs().pixel_to_world_values([110.0, 50.0], [120.0, 60.0])
    ctx = Context(CPU)
    table = Catalog({"x": [113.0, 53.0], "y": [124.0, 64.0], "RA": ra, "Dec": dec})
    got = Sources().execute(ctx, {"image": e, "positions": table})["catalog"]
    np.testing.assert_array_equal(got["x"].value, [113, 53])
    assert ctx.flags["positions_twofold"].endswith("x, y count; on this image ra, dec are 5.00 px away (median)")
    ctx = Context(CPU)
    Sources().execute(ctx, {"image": e.with_(wcs=None), "positions": table})
    assert ctx.flags["positions_twofold"].endswith("x, y count")
