# SPDX-License-Identifier: BSD-3-Clause
"""Files, memory, file objects and web servers: the same pixels, reads that are counted, errors of one clear line."""

import contextlib
import gzip
import io
import json
import os
import threading

import numpy as np
import pytest
import support_web
from astropy.io import fits

import skydelta
from skydelta.errors import InputError
from skydelta.io import remote
from skydelta.io.fits.reader import inspect
from skydelta.io.routes import ROUTES

SHAPE = (700, 900)


def build(*hdus):
    buffer = io.BytesIO()
    fits.HDUList([fits.PrimaryHDU(), *hdus]).writeto(buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def pixels():
    return (1000 + np.random.default_rng(0).normal(0, 10, SHAPE)).astype(np.float32)


@pytest.fixture(scope="module")
def plain(pixels):
    return build(fits.ImageHDU(pixels, name="SCI"), fits.ImageHDU(pixels / 10, name="VAR"))


@pytest.fixture(scope="module")
def tiled(pixels):
    return build(fits.CompImageHDU(pixels.astype(np.int32), name="SCI", tile_shape=(50, 100)))


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(remote, "PAUSE", 0.001)
    monkeypatch.setattr(remote, "TIMEOUT", 5.0)


@pytest.fixture
def web(plain, quick):
    with support_web.Server(plain) as server:
        yield server


class Pipe(io.RawIOBase):
    """A binary stream that cannot seek."""

    def __init__(self, data):
        self._data = io.BytesIO(data)

    def readable(self):
        return True

    def readinto(self, out):
        return self._data.readinto(out)


@pytest.mark.parametrize("packed", [False, True])
def test_every_kind_of_source_gives_the_same(tmp_path, plain, pixels, packed, quick):
    data = gzip.compress(plain, 1) if packed else plain
    path = tmp_path / "image.fits"
    path.write_bytes(data)
    with support_web.Server(data) as server, path.open("rb") as file:
        file.seek(17)
        sources = {
            "posix": [path, str(path), f"{path}[SCI]", path.as_uri()],
            "memory": [data, bytearray(data), memoryview(data)],
            "file object": [file, io.BytesIO(data), Pipe(data)],
            "http": [server.url, f"{server.url}[SCI]", f"{server.base}/moved"],
        }
        assert sources.keys() == ROUTES.keys() - {"object store", "kvikio"}  # which have their own files of tests
        for route, those in sources.items():
            for source in those:
                found = skydelta.read(source, device="cpu")
                assert np.array_equal(found.image, pixels)
                assert np.array_equal(found.variance, pixels / 10)
                assert list(found.notes["read"]) == [route]
                note = found.notes["read"][route]
                assert note["files"] == 1
                assert note["bytes"] >= len(data) if packed else note["bytes"] >= 2 * pixels.nbytes
                json.dumps(found.notes)
        assert file.tell() == 17
        assert not file.closed


def test_planes_of_other_files_are_counted_by_route(tmp_path, plain, pixels, web):
    path = tmp_path / "image.fits"
    path.write_bytes(build(fits.ImageHDU(pixels, name="SCI")))
    found = skydelta.read(path, variance=f"{web.url}[VAR]", device="cpu")
    assert np.array_equal(found.variance, pixels / 10)
    assert {r: n["files"] for r, n in found.notes["read"].items()} == {"posix": 1, "http": 1}
    size = os.path.getsize(path)
    assert pixels.nbytes < found.notes["read"]["posix"]["bytes"] <= size + 4 * 2880


def test_open_reads_headers_alone_and_sections_only_what_they_touch(tmp_path, plain, tiled, pixels):
    path = tmp_path / "image.fits"
    for data, expected, touched in ((plain, pixels, 20 * 900 * 4), (tiled, pixels.astype("i4"), 2 * 3 * 50 * 100 * 4)):
        path.write_bytes(data)
        with skydelta.open(path) as file:
            headers = file.counted.bytes
            assert headers <= 2880 * 12
            assert [h.name for h in file.hdus][1] == "SCI"
            assert file.hdus[1].shape == SHAPE
            with fits.open(path, disable_image_compression=True) as truth:
                for ours, theirs in zip(file.hdus, truth, strict=True):
                    info = theirs.fileinfo()
                    assert (ours.start, ours.data) == (info["hdrLoc"], info["datLoc"])
                    assert -(-ours.size // 2880) * 2880 == info["datSpan"]
            assert file.counted.bytes == headers
            box = (slice(140, 160), slice(310, 510))
            assert np.array_equal(file.pixels("SCI", box), expected[box])
            read = file.counted.bytes - headers
            if data is plain:
                assert read == touched
            else:
                assert 0 < read < file.hdus[1].size / 4
                assert read < touched + file.hdus[1].size / 10
            assert np.array_equal(file.pixels(), expected)
            assert np.array_equal(file.pixels(1, box, "float32"), expected[box].astype("f4"))


def test_read_takes_an_open_file_and_leaves_it_open(tmp_path, plain, pixels):
    with skydelta.open(plain) as file:
        assert np.array_equal(skydelta.read(file, device="cpu").image, pixels)
        assert np.array_equal(skydelta.read(file, image="VAR", device="cpu").image, pixels / 10)


def test_inspect_and_read_many_take_the_same_sources(plain, web):
    assert list(inspect(web.url)["name"]) == list(inspect(plain)["name"]) == ["", "SCI", "VAR"]
    a, b = skydelta.read_many([web.url, plain], device="cpu")
    assert np.array_equal(a.image, b.image)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (b"", r"bytes: is empty \(0 bytes\)"),
        (b"not FITS at all", "bytes: not FITS"),
        (io.BytesIO(), r"file object: is empty \(0 bytes\)"),
        (io.StringIO("SIMPLE  ="), "gives str; a file opened as binary is needed"),
        ("ftp://bucket/a.fits", "ftp cannot be read; http, https, s3, gs, file URLs"),
        ("http:///a.fits", "the URL names no server"),
        ("https://me:secret@example.org/a.fits", r"https://example\.org/a\.fits: user and password"),
    ],
)
def test_sources_that_cannot_be_read(source, said):
    with pytest.raises(InputError, match=said) as caught:
        skydelta.read(source)
    assert "secret" not in str(caught.value)


def test_closed_file_object(tmp_path):
    file = io.BytesIO(b"x")
    file.close()
    with pytest.raises(InputError, match="cannot be read: I/O operation on closed file"):
        skydelta.open(file)


def test_a_section_from_a_server_costs_blocks_not_the_file(web, pixels):
    with skydelta.open(web.url) as file:
        assert len(web.requests) == 2, "blocks with headers"
        assert np.array_equal(file.pixels("VAR", (slice(10, 12), slice(5, 9))), (pixels / 10)[10:12, 5:9])
        assert web.sent <= 4 * remote.BLOCK < len(web.data) / 3


def test_large_spans_are_asked_for_in_pieces_at_once(web, monkeypatch, pixels):
    monkeypatch.setattr(remote.Blocks, "span", 1 << 18)
    inside, most, lock, original = [0], [0], threading.Lock(), remote._Request.fill

    def watched(self, start, out):
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(2)
        original(self, start, out)
        with lock:
            inside[0] -= 1

    barrier = threading.Barrier(2)
    with skydelta.open(web.url) as file:
        monkeypatch.setattr(remote._Request, "fill", watched)
        out = np.empty(2_000_000, np.uint8)
        assert file.content.read_into(1000, out) == len(out)
    assert out.tobytes() == web.data[1000:2_001_000]
    assert 2 <= most[0] <= 4


def test_server_without_ranges(web, pixels):
    web.ranges = False
    found = skydelta.read(web.url, device="cpu")
    assert np.array_equal(found.image, pixels)
    assert len(web.requests) == 1
    web.length = False
    assert np.array_equal(skydelta.read(web.url, device="cpu").image, pixels)


def test_server_without_ranges_and_a_file_too_large(web, monkeypatch):
    monkeypatch.setattr(remote, "MAX_WHOLE", 1000)
    web.ranges = False
    with pytest.raises(InputError, match=r"gives no ranges; \d+ bytes at once, at most 1000 are allowed"):
        skydelta.open(web.url)
    web.length = False
    with pytest.raises(InputError, match="gives no ranges; more than 1000 bytes at once"):
        skydelta.open(web.url)


@pytest.mark.parametrize("ranges", [True, False])
def test_answers_cut_short_are_asked_for_again(web, pixels, ranges):
    web.ranges = ranges
    web.cut = lambda number: 100_000 if number % 2 == 0 else None
    assert np.array_equal(skydelta.read(web.url, device="cpu").image, pixels)
    assert len(web.requests) > 1


@pytest.mark.parametrize("ranges", [True, False])
def test_answers_always_cut_short_are_an_error(web, ranges):
    web.ranges = ranges
    web.cut = lambda number: 1000
    with pytest.raises(InputError, match=r"image\.fits: the answer ends after 1000 of \d+ bytes \(4 attempts\)"):
        skydelta.open(web.url)


def test_answers_cut_short_later_name_the_hdu_and_the_bytes(web):
    with skydelta.open(web.url) as file:
        web.cut = lambda number: 10
        with pytest.raises(InputError, match=r"HDU 2 \(VAR\): bytes \d+ to \d+: the answers end after 40 of \d+"):
            file.pixels("VAR")


@pytest.mark.parametrize(
    ("status", "attempts", "said"),
    [(404, 1, "HTTP 404 Not Found"), (403, 1, "HTTP 403"), (503, 4, r"HTTP 503 Service Unavailable \(4 attempts\)")],
)
def test_refusals(web, status, attempts, said):
    web.status = lambda number: status
    with pytest.raises(InputError, match=f"^{web.url}: {said}"):
        skydelta.read(f"{web.url}?signature=secret")
    assert len(web.requests) == attempts


def test_a_busy_server_is_asked_again(web, pixels):
    web.status = lambda number: 503 if number < 2 else None
    assert np.array_equal(skydelta.read(web.url, device="cpu").image, pixels)


def test_no_server(quick):
    with support_web.Server(b"") as server:
        url = server.url
    with pytest.raises(InputError, match=r"no answer: .*\(4 attempts\)"):
        skydelta.read(url)


def test_empty_file_on_a_server(quick):
    with (
        support_web.Server(b"") as server,
        pytest.raises(InputError, match=r"image\.fits: is empty \(0 bytes\)"),
    ):
        skydelta.read(server.url)


@pytest.mark.parametrize("change", [{"etag": '"2"'}, {"total": 10**7, "etag": None}, {"shift": 5}])
def test_a_file_that_changes_meanwhile_or_another_range_is_an_error(web, change):
    with skydelta.open(web.url) as file:
        for name, value in change.items():
            setattr(web, name, value)
        with pytest.raises(InputError, match=r"HDU 2 \(VAR\): (the file on the server has changed|Content-Range)"):
            file.pixels("VAR")


def test_a_redirect_cannot_leave_the_web(web, tmp_path, plain):
    path = tmp_path / "image.fits"
    path.write_bytes(plain)
    web.redirect = path.as_uri()
    with pytest.raises(InputError):
        skydelta.read(f"{web.base}/moved")


def test_a_truncated_file_on_a_server_says_so(plain, quick):
    with (
        support_web.Server(plain[: len(plain) // 3]) as server,
        pytest.raises(InputError, match=r"HDU 1 \(SCI\): data are truncated"),
    ):
        skydelta.read(server.url, image="SCI")
