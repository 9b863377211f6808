# SPDX-License-Identifier: BSD-3-Clause
"""What waits on disk comes back as it went; outlines say what `read` says."""

import numpy as np
import pytest
from astropy import units as u
from support_align import plane, with_sip

import skydelta
from skydelta.errors import InputError
from skydelta.io.exposure import Exposure
from skydelta.io.outline import outline
from skydelta.io.spool import Spool


@pytest.mark.parametrize("budget", [0, 4000, 1 << 20])
def test_planes_come_back_whole_and_by_rows(budget, rng, tmp_path):
    shapes = [(20, 30), (7, 5), (40, 3)]
    planes = [(rng.normal(size=s).astype(np.float32), rng.integers(0, 99, s).astype(np.int32)) for s in shapes]
    planes[1] = (planes[1][0][:, ::-1], planes[1][1])  # not contiguous
    with Spool(budget, str(tmp_path)) as spool:
        for p in planes:
            spool.put(*p)
        assert len(spool) == 3 and list(tmp_path.iterdir()) == []
        assert (spool.written == 0) == (budget > 10000)
        for k, p in enumerate(planes):
            for rows in (slice(None), slice(2, 6), slice(5, 5), slice(4, 1000)):
                for found, wanted in zip(spool.take(k, rows), p, strict=True):
                    assert found.dtype == wanted.dtype
                    np.testing.assert_array_equal(found, wanted[rows])


def test_a_folder_that_cannot_be_written_is_said():
    with Spool(0, "/nowhere") as spool, pytest.raises(InputError, match="scratch file in /nowhere: cannot be written"):
        spool.put(np.zeros((3, 3)))


def test_outline_is_what_read_says(tmp_path):
    path = tmp_path / "a.fits"
    image = Exposure(np.ones((30, 40), np.float32), wcs=with_sip(plane((30, 40))), unit=u.adu)
    image.header["FILTER"] = "r"
    skydelta.write(image, path)
    read, found = skydelta.read(path, device="cpu"), outline(path)
    assert (found.id, found.shape, found.unit) == (read.id, read.shape, read.unit)
    assert found.header["FILTER"] == "r"
    np.testing.assert_array_equal(found.wcs.all_pix2world(3, 4, 0), read.wcs.all_pix2world(3, 4, 0))
    np.testing.assert_array_equal(found.read("cpu").image, read.image)
    assert outline(image).wcs is image.wcs
    with pytest.raises(InputError, match=r"gone\.fits"):
        outline(tmp_path / "gone.fits")
