# SPDX-License-Identifier: BSD-3-Clause
"""How users call it: exposures, CCDData, NDData, files, headers, the way of reproject, and the command line."""

from typing import get_args

import numpy as np
import pytest
from astropy import units as u
from astropy.io import fits
from astropy.nddata import CCDData, InverseVariance, NDData, StdDevUncertainty, UnknownUncertainty, VarianceUncertainty
from astropy.wcs import WCS
from click.testing import CliRunner
from scipy import ndimage
from support_align import plane, with_sip
from support_wcs import Wrapped

import skydelta
from skydelta.errors import ConfigError, InputError
from skydelta.io.exposure import Exposure
from skydelta.io.planes import MaskPlanes
from skydelta.kernels.resample import Method
from skydelta.pipeline.cli import cli
from skydelta.pipeline.commands.align import METHODS

SHAPE, ONTO = (90, 100), (80, 110)


@pytest.fixture
def image(rng):
    return ndimage.gaussian_filter(rng.normal(0, 30, SHAPE), 2.0).astype(np.float32)


@pytest.fixture
def source():
    return with_sip(plane(SHAPE))


@pytest.fixture
def target():
    return plane(ONTO, 5.0, shift=(3.3, -2.1))


@pytest.fixture
def want(image, source, target):
    onto = Exposure(np.zeros(ONTO, np.float32), wcs=target)
    return skydelta.align(Exposure(image, wcs=source), onto=onto, device="cpu")


def sized(wcs, shape=ONTO):
    header = wcs.to_header(relax=True)
    header["NAXIS"], header["NAXIS1"], header["NAXIS2"] = 2, shape[1], shape[0]
    return header


# ---- onto ----


def test_onto_may_be_many_things(image, source, target, want, tmp_path):
    header = sized(target)
    header.totextfile(tmp_path / "grid.hdr")
    fits.writeto(tmp_path / "grid.fits", np.zeros(ONTO, np.float32), target.to_header())
    wrapped = Wrapped(target)
    wrapped.array_shape = ONTO
    things = [
        target,
        header,
        (target, ONTO),
        (target.to_header(), ONTO),
        wrapped,
        CCDData(np.zeros(ONTO), wcs=target, unit="adu"),
        fits.ImageHDU(np.zeros(ONTO), header=target.to_header()),
        tmp_path / "grid.hdr",
        str(tmp_path / "grid.fits[0]"),
    ]
    for onto in things:
        got = skydelta.align(Exposure(image, wcs=source), onto=onto, device="cpu")
        assert got.shape == ONTO
        np.testing.assert_allclose(got.image, want.image, atol=2e-6, err_msg=str(onto))


def test_onto_without_a_size_or_a_wcs(image, source, target):
    bare = target.deepcopy()
    bare.pixel_shape = None
    mine = Exposure(image, wcs=source)
    with pytest.raises(InputError, match="onto: the WCS has no size; give its array_shape"):
        skydelta.align(mine, onto=bare)
    with pytest.raises(InputError, match="the grid has no size"):
        skydelta.align(mine, onto=target.to_header())
    with pytest.raises(InputError, match=r"shape \(0, 5\): both must be 1 or more"):
        skydelta.align(mine, onto=(target, (0, 5)))
    with pytest.raises(ConfigError, match="input onto is int"):
        skydelta.align(mine, onto=3)
    with pytest.raises(ConfigError, match=r"input onto .* is missing"):
        skydelta.align(mine)


def test_header_says_what_was_done(image, source, target, want):
    assert want.header["ALMETHOD"] == "bspline3"
    assert 0 < want.header["ALMAPERR"] < 1e-4
    assert want.header["ALCONSRV"] == "brightness"
    assert 0.5 < want.header["ALCOVER"] < 1
    flux = skydelta.align(Exposure(image, wcs=source, unit=u.adu), onto=(plane(ONTO, scale=1.3), ONTO), device="cpu")
    assert flux.header["ALCONSRV"] == "flux"
    same = skydelta.align(Exposure(image, wcs=source), onto=(source, SHAPE), device="cpu")
    assert same.header["ALMETHOD"] == "copy" and same.header["ALCOVER"] == 1


# ---- astropy's containers ----


@pytest.mark.parametrize(
    ("kind", "from_variance"),
    [(VarianceUncertainty, lambda v: v), (StdDevUncertainty, np.sqrt), (InverseVariance, lambda v: 1 / v)],
)
@pytest.mark.parametrize("container", [CCDData, NDData])
def test_ccddata_and_nddata_in_and_out(container, kind, from_variance, image, source, target, rng):
    variance = rng.uniform(1, 2, SHAPE).astype(np.float32)
    mask = rng.random(SHAPE) < 0.01
    given = container(
        image, uncertainty=kind(from_variance(variance)), mask=mask, wcs=source, unit="electron", meta={"EXPTIME": 30.0}
    )
    got = skydelta.align(given, onto=target, device="cpu")
    assert type(got) is container
    expected = skydelta.align(Exposure(image, variance, mask, wcs=source, unit=u.electron), onto=target, device="cpu")
    np.testing.assert_array_equal(got.data, expected.image)
    np.testing.assert_allclose(got.uncertainty.array, expected.variance, rtol=1e-5)
    assert isinstance(got.uncertainty, VarianceUncertainty)
    np.testing.assert_array_equal(got.mask, (expected.mask & expected.planes.invalid) != 0)
    assert got.unit == u.electron
    assert got.meta["EXPTIME"] == 30.0 and got.meta["ALMETHOD"] == "bspline3"
    np.testing.assert_allclose(got.wcs.pixel_to_world_values(3, 4), target.pixel_to_world_values(3, 4))


def test_nddata_without_uncertainty_gets_none(image, source, target):
    got = skydelta.align(NDData(image, wcs=source), onto=target, device="cpu")
    assert got.uncertainty is None and got.unit is None
    scalar = skydelta.align(NDData(image, wcs=source, mask=False), onto=target, device="cpu")
    np.testing.assert_array_equal(scalar.data, got.data)
    with pytest.raises(InputError, match="UnknownUncertainty has no known relation to a variance"):
        skydelta.align(NDData(image, wcs=source, uncertainty=UnknownUncertainty(image)), onto=target)
    with pytest.raises(InputError, match="has no celestial WCS"):
        skydelta.align(NDData(image), onto=target)


# ---- the way of reproject ----


def test_command_line_and_settings_have_the_methods_of_the_kernels():
    assert {*METHODS} == {*get_args(Method)}
    with pytest.raises(ConfigError, match="lanczos6"):
        skydelta.reproject((np.ones(SHAPE, np.float32), plane(SHAPE)), plane(ONTO), ONTO, method="lanczos6")


@pytest.mark.parametrize(
    ("method", "order", "limit"),
    [
        ("nearest", "nearest-neighbor", 0.0),
        ("bilinear", "bilinear", 1e-4),
        ("bspline3", "bicubic", 1e-3),
        ("bspline5", 5, 1e-3),
    ],
)
def test_reproject_agrees_with_reproject_interp(method, order, limit, image, source, target, peer, figure):
    theirs, seen = peer("reproject").reproject_interp((image, source), target, shape_out=ONTO, order=order)
    ours, footprint = skydelta.reproject((image, source), target, shape_out=ONTO, method=method, device="cpu")
    assert ours.shape == footprint.shape == ONTO
    again = skydelta.reproject((image, source), target, shape_out=ONTO, order=order, device="cpu")[0]
    assert again.tobytes() == ours.tobytes()
    inner = ndimage.binary_erosion(seen > 0, iterations=10)
    assert inner.mean() > 0.4
    difference = np.abs(ours - theirs)[inner]
    if method == "nearest":  # a position half way between two pixels may go either way
        assert (difference > 0).mean() < 1e-3
    else:
        figure(f"reproject {method}: largest difference / range", difference.max() / np.ptp(image), limit)
    assert (np.isfinite(ours) == (footprint > 0)).all()
    assert ((footprint > 0) == (seen > 0)).mean() > 0.999
    assert footprint[inner].min() == 1.0


def test_reproject_takes_what_reproject_takes(image, source, target, tmp_path, peer):
    want, _ = skydelta.reproject((image, source), target, ONTO, device="cpu")
    header = source.to_header(relax=True)
    hdus = fits.HDUList([fits.PrimaryHDU(), fits.ImageHDU(image, header, name="A"), fits.ImageHDU(-image, header)])
    hdus.writeto(tmp_path / "a.fits")
    sized(target).totextfile(tmp_path / "grid.hdr")
    masked = np.ma.MaskedArray(image, np.zeros(SHAPE, bool))
    inputs = [
        ((image.astype(">f8"), header), {}),
        ((masked, source), {}),
        (hdus[1], {}),
        (hdus, {"hdu_in": 1}),
        (tmp_path / "a.fits", {"hdu_in": "A"}),
        (str(tmp_path / "a.fits[1]"), {}),
        (NDData(image, wcs=source), {}),
        (Exposure(image, wcs=source), {}),
    ]
    for given, more in inputs:
        np.testing.assert_allclose(skydelta.reproject(given, target, ONTO, device="cpu", **more)[0], want, atol=1e-5)
    assert skydelta.reproject(hdus, target, hdu_in=2, device="cpu")[0][40, 50] == -want[40, 50]
    outputs = [(target, None), (target.to_header(), ONTO), (sized(target), None), (tmp_path / "grid.hdr", None)]
    for onto, shape in outputs:
        np.testing.assert_allclose(skydelta.reproject((image, source), onto, shape, device="cpu")[0], want, atol=1e-5)
    alone = skydelta.reproject((image, source), target, return_footprint=False, device="cpu")
    np.testing.assert_array_equal(alone, want)
    smaller, _ = skydelta.reproject((image, source), sized(target), (20, 30), device="cpu")
    np.testing.assert_array_equal(smaller, want[:20, :30])
    theirs, _ = peer("reproject").reproject_interp(hdus, sized(target), hdu_in=2, order="bicubic")
    assert np.nanmedian(np.abs(theirs + want)) < 1e-3


def test_reproject_of_nothing_is_empty_and_not_an_error(image, source):
    array, footprint = skydelta.reproject((image, source), plane(ONTO, sky=(200.0, 40.0)), device="cpu")
    assert np.isnan(array).all() and (footprint == 0).all()
    beside = plane(SHAPE)
    beside.wcs.crpix = np.add(beside.wcs.crpix, (500, 0))
    array, footprint = skydelta.reproject((image, plane(SHAPE)), beside, device="cpu")
    assert np.isnan(array).all() and (footprint == 0).all()


def test_reproject_masks_and_copies(image):
    moved = plane(SHAPE)
    moved.wcs.crpix = np.add(moved.wcs.crpix, (7, -4))
    array, footprint = skydelta.reproject((image, plane(SHAPE)), moved, device="cpu")
    assert array[:-4, 7:].tobytes() == image[4:, :-7].tobytes()
    assert (footprint[:-4, 7:] == 1).all() and footprint.sum() == 86 * 93
    masked = np.ma.MaskedArray(image, np.zeros(SHAPE, bool))
    masked[40:50, 40:50] = np.ma.masked
    array, footprint = skydelta.reproject((masked, plane(SHAPE)), plane(SHAPE, 1.0), device="cpu")
    assert np.isnan(array[42:48, 42:48]).all() and (footprint[42:48, 42:48] == 0).all()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda a, w: skydelta.reproject((np.zeros((3, 4, 5)), w), w), InputError, "two dimensions are needed"),
        (lambda a, w: skydelta.reproject((a, None), w), InputError, "image has no celestial WCS"),
        (lambda a, w: skydelta.reproject((a, w), WCS(naxis=2), SHAPE), InputError, "onto has no celestial WCS"),
        (lambda a, w: skydelta.reproject(3, w), ConfigError, "int is no image"),
        (lambda a, w: skydelta.reproject((a, w), w, method="bicubic"), ConfigError, "align.method: 'bicubic' is not"),
        (lambda a, w: skydelta.reproject((a, w), w, order="biquadratic"), ConfigError, "order 'biquadratic'; allowed"),
        (
            lambda a, w: skydelta.reproject((a, w), w, order=2),
            ConfigError,
            "order 2; allowed are 'nearest-neighbor', 0",
        ),
        (lambda a, w: skydelta.reproject((a, w), w, order=1, method="nearest"), ConfigError, "one of them is allowed"),
        (lambda a, w: skydelta.reproject("/nowhere.fits", w), InputError, "/nowhere.fits: no such file"),
    ],
)
def test_reproject_names_what_is_wrong(call, error, words, image, source):
    with pytest.raises(error, match=words):
        call(image, source)


# ---- the command line ----


@pytest.fixture
def files(image, source, target, tmp_path, rng):
    mask = np.zeros(SHAPE, np.int32)
    mask[30, 40] = 1
    exposure = Exposure(image, np.full(SHAPE, 4.0, np.float32), mask, wcs=source, unit=u.adu)
    skydelta.write(exposure, tmp_path / "image.fits")
    fits.writeto(tmp_path / "onto.fits", np.zeros(ONTO, np.float32), target.to_header())
    sized(target).totextfile(tmp_path / "onto.hdr")
    fits.writeto(tmp_path / "plain.fits", np.zeros(ONTO, np.float32))
    fits.writeto(tmp_path / "far.fits", np.zeros(ONTO, np.float32), plane(ONTO, sky=(200.0, 1.0)).to_header())
    (tmp_path / "text.hdr").write_text("SIMPLE  =                    T\n")
    return tmp_path, exposure


def command(folder, *words):
    return CliRunner().invoke(cli, ["align", *(str(w) for w in words)])


@pytest.mark.parametrize("onto", ["onto.fits", "onto.hdr"])
@pytest.mark.parametrize("compress", [None, "GZIP_2"])
def test_command_writes_all_planes(onto, compress, files, target):
    folder, exposure = files
    out = folder / "out.fits"
    more = () if compress is None else ("--compress", compress)
    done = command(folder, folder / "image.fits", "--onto", folder / onto, "-o", out, "--method", "lanczos3", *more)
    assert done.exit_code == 0, done.output
    assert "110 x 80 px, lanczos3" in done.output
    want = skydelta.align(exposure, onto=(target, ONTO), method="lanczos3", device="cpu")
    with fits.open(out) as hdus:
        assert [h.name for h in hdus[1:]] == ["SCI", "VAR", "DQ", "FOOTPRINT", "NOISECOR"]
        np.testing.assert_allclose(hdus["SCI"].data, want.image, atol=1e-5)
        np.testing.assert_allclose(hdus["VAR"].data, want.variance, rtol=1e-5)
        assert (hdus["DQ"].data == want.mask).all()
        footprint = hdus["FOOTPRINT"].data
        assert footprint.max() == 1 and (footprint[np.isfinite(hdus["SCI"].data)] > 0).all()
        header = hdus["SCI"].header
        assert header["ALMETHOD"] == "lanczos3" and header["ALCONSRV"] == "flux"
        assert 0 < header["ALMAPERR"] < 1e-4
        assert header["BUNIT"] == "adu"
        assert "ALVARI" in header and "ALMASK" in header
        again = WCS(header)
        np.testing.assert_allclose(again.all_pix2world(5, 6, 0), target.all_pix2world(5, 6, 0), atol=1e-10)
    first = out.read_bytes()
    refused = command(folder, folder / "image.fits", "--onto", folder / onto, "-o", out)
    assert refused.exit_code == 2 and "is there already; --overwrite replaces it" in refused.output
    assert out.read_bytes() == first
    words = (folder / "image.fits", "--onto", folder / onto, "-o", out, "--overwrite", "--method", "lanczos3", *more)
    assert command(folder, *words).exit_code == 0
    assert out.read_bytes() == first


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("none.fits", "--onto", "onto.fits"), 3, "none.fits: no such file"),
        (("image.fits", "--onto", "none.fits"), 3, "none.fits: no such file"),
        (("plain.fits", "--onto", "onto.fits"), 3, "align: image plain.fits has no celestial WCS"),
        (("image.fits", "--onto", "plain.fits"), 3, "plain.fits: no celestial WCS"),
        (("image.fits", "--onto", "far.fits"), 3, "do not overlap: the target grid of 110 x 80 px lies"),
        (("image.fits", "--onto", "text.hdr"), 3, "text.hdr: no celestial WCS"),
        (("image.fits", "--onto", "onto.fits", "--tolerance", "5"), 2, "align.tolerance: 5.0 is above 0.1"),
        (("image.fits", "--onto", "onto.fits", "--method", "cubic"), 2, "'cubic' is not one of"),
        (("image.fits[7]", "--onto", "onto.fits"), 3, "image.fits: no HDU"),
        (("image.fits",), 2, "Missing option '--onto'"),
    ],
)
def test_command_names_what_is_wrong(words, code, message, files, monkeypatch):
    import re

    folder, _ = files
    monkeypatch.chdir(folder)
    done = command(folder, *words, "-o", "out.fits")
    assert done.exit_code == code, done.output
    assert re.search(message, done.output), done.output
    assert done.output.strip().splitlines()[-1].startswith(("skydelta: ", "Error: "))
    assert not (folder / "out.fits").exists()


def test_command_refuses_an_image_without_a_pixel(files, monkeypatch):
    folder, _ = files
    monkeypatch.chdir(folder)
    with fits.open(folder / "image.fits") as hdus:
        for hdu in hdus:
            if hdu.data is not None and hdu.data.dtype.kind == "f":
                hdu.data[:] = np.nan
        hdus.writeto(folder / "empty.fits")
    done = command(folder, "empty.fits", "--onto", "onto.fits", "-o", "none_of_it.fits")
    assert done.exit_code == 3 and "has no pixel with a value" in done.output, done.output
    assert not (folder / "none_of_it.fits").exists()


@pytest.mark.parametrize("shift", [(4, -3), (4.3, -3.2)], ids=["copied", "interpolated"])
def test_footprint_is_nothing_on_bad_pixels_whatever_the_way(image, shift, tmp_path):
    """A hole of NaN and one of BAD pixels, both wider than the kernel."""
    planes = MaskPlanes.of({"BAD": 0})
    mask = np.zeros(SHAPE, np.int32)
    image[20:40, 20:40], mask[50:70, 50:70] = np.nan, planes.bit("BAD")
    exposure = Exposure(image, mask=mask, planes=planes, wcs=plane(SHAPE))
    skydelta.write(exposure, tmp_path / "in.fits")
    fits.PrimaryHDU(np.zeros(SHAPE, np.float32), plane(SHAPE, shift=shift).to_header()).writeto(tmp_path / "onto.fits")
    done = command(tmp_path, tmp_path / "in.fits", "--onto", tmp_path / "onto.fits", "-o", tmp_path / "out.fits")
    assert done.exit_code == 0, done.output
    footprint = fits.getdata(tmp_path / "out.fits", "FOOTPRINT")
    # where the target's pixels lie in the image: the middles of the holes, and far from both
    there = WCS(fits.getheader(tmp_path / "out.fits", "SCI"))
    at = [there.all_world2pix(*plane(SHAPE).all_pix2world(x, y, 0), 0) for x, y in ((30, 30), (60, 60), (70, 30))]
    values = [float(footprint[int(np.rint(y)), int(np.rint(x))]) for x, y in at]
    assert values == [0, 0, 1]
