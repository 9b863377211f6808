# SPDX-License-Identifier: BSD-3-Clause
"""Objects in stores, through fsspec: a store in memory that answers to the name s3, and errors of one clear line."""

import io
import subprocess
import sys

import numpy as np
import pytest
from astropy.io import fits

import skydelta
from skydelta.errors import InputError
from skydelta.io.stores import STORES

fsspec = pytest.importorskip("fsspec")

from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402
from fsspec.registry import _registry  # noqa: E402


class Store(MemoryFileSystem):
    """Buckets in memory; ranges that were asked for."""

    protocol = "s3"
    store: dict = {}
    pseudo_dirs = [""]
    ranges: list = []
    failure: Exception | None = None

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("s3://").strip("/")

    def cat_file(self, path, start=None, end=None, **more):
        if self.failure is not None:
            raise self.failure
        self.ranges.append((start, end))
        return super().cat_file(path, start, end, **more)


@pytest.fixture
def bucket(monkeypatch):
    monkeypatch.setitem(_registry, "s3", Store)
    Store.store, Store.ranges, Store.failure = {}, [], None
    Store.clear_instance_cache()
    return Store()


@pytest.fixture(scope="module")
def image():
    return (1000 + np.random.default_rng(0).normal(0, 10, (1500, 1700))).astype(np.float32)


def put(bucket, key, *hdus):
    buffer = io.BytesIO()
    fits.HDUList([fits.PrimaryHDU(), *hdus]).writeto(buffer)
    bucket.pipe_file(key, buffer.getvalue())
    return f"s3:/{key}", buffer.getvalue()


def test_an_object_is_read_as_a_file(bucket, image):
    url, raw = put(
        bucket, "/night/a.fits", fits.ImageHDU(image, name="SCI"), fits.ImageHDU(0 * image + 100, name="VAR")
    )
    found, same = skydelta.read(url, device="cpu"), skydelta.read(raw, device="cpu")
    assert np.array_equal(found.image, image)
    assert np.array_equal(found.variance, same.variance)
    assert found.notes["read"] == {"object store": found.notes["read"]["object store"]}
    assert found.notes["read"]["object store"]["bytes"] >= 2 * image.nbytes
    assert found.id == "a.fits"


@pytest.mark.parametrize("compressed", [False, True])
def test_a_section_costs_ranges_not_the_object(bucket, image, compressed):
    hdu = fits.ImageHDU(image, name="SCI")
    if compressed:
        hdu = fits.CompImageHDU(image.astype("i4"), name="SCI", tile_shape=(50, 1700))
    url, raw = put(bucket, "/night/a.fits", hdu)
    box = (slice(700, 710), slice(30, 40))
    with skydelta.open(url) as file:
        assert np.array_equal(file.pixels("SCI", box), image.astype("i4" if compressed else "f4")[box])
    assert sum(stop - start for start, stop in Store.ranges) < 1_200_000 < len(raw)


def test_errors(bucket, image):
    with pytest.raises(InputError, match=r"^s3://night/none\.fits: no such object$"):
        skydelta.open("s3://night/none.fits")
    url, _ = put(bucket, "/night/a.fits", fits.ImageHDU(image, name="SCI"))
    with pytest.raises(InputError, match=r"^s3://night: is a folder"):
        skydelta.open("s3://night")
    with pytest.raises(InputError, match=r"^s3://night/a\.fits: user and password in a URL are not used") as caught:
        skydelta.open("s3://me:secret@night/a.fits")
    assert "secret" not in str(caught.value)
    for failure, said in (
        (PermissionError("Access Denied\nsecond line"), "not allowed: Access Denied"),
        (RuntimeError("Unable to locate credentials"), "cannot be read: Unable to locate credentials"),
    ):
        Store.failure = failure
        with pytest.raises(InputError) as caught:
            skydelta.open(url)
        assert str(caught.value) == f"{url}: {said}"
    Store.failure = None
    with skydelta.open(url) as file:
        Store.store["/night/a.fits"].truncate(200_000)
        with pytest.raises(InputError, match="the object has changed meanwhile"):
            file.pixels("SCI")
    bucket.pipe_file("/night/empty.fits", b"")
    with pytest.raises(InputError, match=r"is empty \(0 bytes\)"):
        skydelta.open("s3://night/empty.fits")


@pytest.mark.parametrize(("missing", "scheme"), [("fsspec", "s3"), ("s3fs", "s3"), ("gcsfs", "gs")])
def test_a_missing_package_is_named(missing, scheme):
    code = (
        f"import sys; sys.modules['{missing}'] = None; import skydelta\n"
        "from skydelta.errors import InputError\n"
        f"try: skydelta.open('{scheme}://night/a.fits')\n"
        "except InputError as e: print(e)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    package = STORES[scheme]
    extra = " (pip install 'skydelta[s3]')" if scheme == "s3" else ""
    assert said == f"{scheme}://night/a.fits: {scheme} URLs need fsspec and the package {package}{extra}\n"
