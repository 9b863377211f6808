# SPDX-License-Identifier: BSD-3-Clause
"""Any array an astronomer has makes an Exposure; what is no plane of numbers is refused in one line."""

import numpy as np
import pytest

from skydelta.errors import InputError
from skydelta.io.exposure import Exposure
from skydelta.stages.background import Background


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i2", "<f8", "u2", "i4", "f2"])
def test_dtypes_of_files_run(dtype):
    rng = np.random.default_rng(1)
    image = rng.normal(100, 5, (128, 128)).astype(dtype)
    e = Exposure(image, np.full((128, 128), 25, ">f4"))
    assert e.image.dtype.isnative
    np.testing.assert_array_equal(e.image, image)
    out = Background()(e, device="cpu")
    out = out["image"] if isinstance(out, dict) else out
    assert out.image.dtype == np.float32
    assert abs(np.median(out.image)) < 1


def test_lists_and_masks():
    e = Exposure([[1.0, 2.0], [3.0, 4.0]], mask=np.array([[True, False], [False, False]]))
    assert e.mask.dtype == np.int32
    assert e.good().tolist() == [[False, True], [True, True]]


@pytest.mark.parametrize(
    ("image", "mask", "words"),
    [
        (np.ones((2, 2), complex), None, "image holds complex128; real numbers are needed"),
        (np.array([["a", "b"]]), None, "real numbers are needed"),
        (np.ones((2, 2)), np.ones((2, 2)), "mask holds float64; whole numbers are needed"),
        (np.ones(3), None, "two dimensions"),
    ],
)
def test_what_is_no_plane_is_refused(image, mask, words):
    with pytest.raises(InputError, match=words):
        Exposure(image, mask=mask)


def test_an_array_is_no_psf():
    with pytest.raises(InputError, match=r"x.fits: psf is a ndarray; a Psf is needed, as `read\(psf=...\)` makes it"):
        Exposure(np.ones((2, 2)), psf=np.ones((3, 3)), id="x.fits")
