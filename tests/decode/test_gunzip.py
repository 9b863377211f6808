# SPDX-License-Identifier: BSD-3-Clause
"""GZIP tiles inflated by the device's kernels, on the host's device: pixels and faults are those of the host."""

import numpy as np
import pytest
import support_host_device
import support_tiles
from cases import decode as case
from cases import inflate as streams

from skydelta.kernels import crc, inflate
from skydelta.kernels import decode as front
from skydelta.kernels.cpu import decode as twin
from skydelta.kernels.cuda import decode as launcher
from skydelta.kernels.cuda import gunzip


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    return support_host_device.HostDevice(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def inflated(device, monkeypatch):
    """Tiles that the device inflates, call by call; kernels run on the host."""
    for name in ("decode", "inflate", "crc"):
        device.attach(monkeypatch, f"skydelta.kernels.cuda.{name}")
    monkeypatch.setattr(launcher, "_is_there", lambda heap: True)
    calls, own = [], gunzip.inflate

    def counted(heap, tiles, rows):
        made = own(heap, tiles, rows)
        calls.append(0 if made is None else len(made.rows))
        return made

    monkeypatch.setattr(gunzip, "inflate", counted)
    return calls


def compare(heap, tiles, form, shape, dtype, corner=(0, 0)):
    """Decode on both; the twin's outcome."""
    out, mask = np.full(shape, 3, dtype), np.zeros(shape, np.int32)
    got, flags = (a.copy().view(support_host_device.DeviceArray) for a in (out, mask))
    want = twin.decode(out, heap, tiles, form, corner, mask, 4, 1)
    done = launcher.decode(got, heap.copy().view(support_host_device.DeviceArray), tiles, form, corner, flags, 4, 1)
    np.testing.assert_array_equal(done.status, want.status)
    sound = want.status == 0
    assert np.asarray(got)[sound].tobytes() == out[sound].tobytes()
    np.testing.assert_array_equal(np.asarray(flags)[sound], mask[sound])
    return want


def test_damaged_members(inflated):
    statuses = set()
    for seed, pixels, width in ((1, 37, 4), (2, 5, 2), (3, 300, 1), (4, 70, 8)):
        heap, tiles, form, original = support_tiles.damaged_members(np.random.default_rng(seed), 60, pixels, width)
        want = compare(heap, tiles, form, original.shape, form.stored)
        statuses |= set(want.status.tolist())
        sound = int((want.status == 0).sum())
        # those with a name in their header, and those of two members, are the host's
        assert sound - 14 <= inflated[-1] <= sound
    assert statuses >= {0, front.OUTSIDE, front.SIZE, front.MAGIC, front.DEFLATE}


@pytest.mark.parametrize("seed", [1, 2, 4, 5])
def test_tables_of_every_codec(inflated, seed):
    """Inflated tiles, those left to the host, and others, side by side; windows, nulls, quantised floats."""
    v = case.make(np.random.default_rng((seed, 3)), case.SHAPES[seed])
    want = twin_and_device(v)
    assert sum(inflated)
    assert not want.status.any()


def twin_and_device(v):
    out, mask = (np.full(v["out"].shape, 3, d) for d in (v["out"].dtype, np.int32))
    got, flags = (a.copy().view(support_host_device.DeviceArray) for a in (out, mask))
    want = twin.decode(out, v["heap"], v["tiles"], v["form"], v["corner"], mask, 4, 1)
    heap = v["heap"].copy().view(support_host_device.DeviceArray)
    done = launcher.decode(got, heap, v["tiles"], v["form"], v["corner"], flags, 4, 1)
    np.testing.assert_array_equal(done.status, want.status)
    np.testing.assert_array_equal(np.asarray(got), out)
    np.testing.assert_array_equal(np.asarray(flags), mask)
    return want


def test_long_tiles_are_left_to_the_host(inflated, monkeypatch):
    monkeypatch.setattr(front, "LONGEST_GZIP", 4 * 64)
    heap, tiles, form, original = support_tiles.damaged_members(np.random.default_rng(1), 20, 65)
    compare(heap, tiles, form, original.shape, form.stored)
    assert inflated == [0]
    assert [front.is_decoded_there(front.GZIP2, n) for n in (256, 257)] == [True, False]
    assert front.is_decoded_there(front.RICE, 1 << 40)
    assert not front.is_decoded_there(front.PLIO, 1)


def test_streams_in_a_buffer_that_begins_anywhere(device, monkeypatch):
    device.attach(monkeypatch, "skydelta.kernels.cuda.inflate")
    from skydelta.kernels.cuda.inflate import inflate as launch

    v = streams.make(np.random.default_rng(5), (12, 200))
    want = inflate.inflate(**v)
    assert 2 < want[1].sum() < 10
    for skew in range(4):
        room = np.zeros(v["data"].size + 16, np.uint8)
        begin = -room.ctypes.data % 4 + skew
        data = room[begin : begin + v["data"].size]
        data[:] = v["data"]
        out, status = launch(**{**v, "data": data.view(support_host_device.DeviceArray)})
        np.testing.assert_array_equal(status, want[1])
        np.testing.assert_array_equal(out, want[0])


@pytest.mark.parametrize(
    "wrong", [{"offset": [-1]}, {"length": [9]}, {"place": [1]}, {"size": [9]}, {"size": [-1]}, {"size": [1 << 31]}]
)
def test_streams_that_lie_outside(wrong):
    given = {"offset": [0], "length": [8], "place": [0], "size": [8], **wrong}
    with pytest.raises(ValueError, match="inflate: streams inside 8 bytes"):
        inflate.inflate(np.zeros(8, np.uint8), **{k: np.array(v) for k, v in given.items()}, total=8)


@pytest.mark.parametrize("pieces", [([2], [1]), ([0], [9]), ([-4], [2]), ([0], [-1])])
def test_sums_of_pieces_that_are_none(pieces):
    with pytest.raises(ValueError, match="crc32: pieces"):
        crc.crc32(np.zeros(8, np.uint8), *map(np.array, pieces))
