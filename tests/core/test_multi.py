# SPDX-License-Identifier: BSD-3-Clause
"""Work spread over devices: the bytes do not depend on how many there are; what comes back is what one array gives."""

import threading
import time

import numpy as np
import pytest
from scipy.ndimage import uniform_filter

from skydelta.errors import DeviceError
from skydelta.kernels.backend import CPU, Backend, resolve
from skydelta.kernels.core.devices import DeviceSet, capture, copy_to
from skydelta.kernels.core.multi import counted_splits, exchange_halos, map_tiles, reduce_tiles, tree_sum
from skydelta.kernels.core.tiles import TileGrid
from skydelta.kernels.core.workspace import Workspace

COUNTS = (1, 2, 3)
SHAPE = (113, 71)


def box_mean(tile, *cuts):
    return sum(uniform_filter(cut, 7, mode="nearest") for cut in cuts)[tile.inner]


@pytest.mark.parametrize("count", COUNTS)
def test_map_tiles_equals_the_whole_image(rng, count):
    a, b = rng.normal(size=(2, *SHAPE)).astype(np.float32)
    got = map_tiles(box_mean, [a, b], TileGrid(SHAPE, 20, halo=3), DeviceSet.of(CPU, count))
    # A halo of the filter's reach makes tile borders invisible; the filter's running sum still rounds by position.
    np.testing.assert_allclose(got, box_mean(next(iter(TileGrid(SHAPE, 200))), a, b), atol=1e-5)


def test_bytes_do_not_depend_on_devices_or_on_who_finishes_first(rng):
    image = rng.normal(size=SHAPE).astype(np.float32)
    grid = TileGrid(SHAPE, 16, halo=3)

    def slow_at_first(tile, cut):
        time.sleep(0.002 * (tile.row < 2))
        return box_mean(tile, cut)

    def moments(tile, cut):
        core = cut[tile.inner].astype(np.float64)
        return np.array([core.sum(), (core**2).sum()]) * 1e3 ** (tile.column - 2)

    images = {map_tiles(slow_at_first, [image], grid, DeviceSet.of(CPU, n)).tobytes() for n in COUNTS}
    sums = {reduce_tiles(moments, [image], grid, DeviceSet.of(CPU, n)).tobytes() for n in COUNTS}
    assert len(images) == len(sums) == 1


def test_every_device_works_on_its_own_band(rng):
    seen = {}

    def who(tile, cut):
        time.sleep(0.01)
        seen.setdefault(threading.get_ident(), []).append(tile.row)
        return cut[tile.inner]

    image = rng.normal(size=(90, 10)).astype(np.float32)
    np.testing.assert_array_equal(map_tiles(who, [image], TileGrid((90, 10), 10), DeviceSet.of(CPU, 3)), image)
    assert sorted(seen.values()) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_more_devices_than_tiles(rng):
    image = rng.normal(size=(8, 8)).astype(np.float32)
    got = map_tiles(lambda tile, cut: cut[tile.inner], [image], TileGrid((8, 8), 8), DeviceSet.of(CPU, 3))
    np.testing.assert_array_equal(got, image)


@pytest.mark.parametrize("count", COUNTS)
def test_a_failing_tile_is_raised(count):
    def fail(tile, cut):
        if tile.row == 2:
            raise ZeroDivisionError("tile 2")
        return cut[tile.inner]

    with pytest.raises(ZeroDivisionError, match="tile 2"):
        map_tiles(fail, [np.zeros((40, 8), np.float32)], TileGrid((40, 8), 8), DeviceSet.of(CPU, count))


@pytest.mark.parametrize("count", COUNTS)
def test_a_tile_without_memory_is_split(rng, count):
    """A device that holds 2500 px at once: the same pixels as with all memory, and the splits are counted."""
    image = rng.integers(0, 1000, (160, 130)).astype(np.float32)
    largest = []

    def little(tile, cut):
        if cut.size > 2500:
            raise MemoryError(f"{cut.size} px")
        largest.append(cut.size)
        return sum(np.roll(cut, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1))[tile.inner]

    def much(tile, cut):
        return sum(np.roll(cut, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1))[tile.inner]

    grid = TileGrid(image.shape, 100, halo=1)
    with counted_splits() as splits:
        got = map_tiles(little, [image], grid, DeviceSet.of(CPU, count))
    inner = (slice(1, -1), slice(1, -1))  # `roll` takes the other edge of whatever cut it is given
    np.testing.assert_array_equal(got[inner], map_tiles(much, [image], grid, DeviceSet.of(CPU))[inner])
    # each split is one piece more
    assert splits.count == len(largest) - len(grid) > 0
    with counted_splits() as splits:
        map_tiles(much, [image], grid, DeviceSet.of(CPU, count))
    assert splits.count == 0


def test_sums_of_tiles_that_are_split(rng):
    image = rng.integers(0, 1000, (160, 130)).astype(np.float32)

    def little(tile, cut):
        if cut.size > 3000:
            raise MemoryError
        return cut[tile.inner].sum(dtype=np.float64)

    assert reduce_tiles(little, [image], TileGrid(image.shape, 100, halo=2), DeviceSet.of(CPU)) == image.sum(
        dtype=float
    )


def test_memory_that_is_missing_for_the_smallest_tile():
    def none(tile, cut):
        raise MemoryError("0 px")

    with pytest.raises(MemoryError, match="0 px"), counted_splits() as splits:
        map_tiles(none, [np.zeros((100, 100), np.float32)], TileGrid((100, 100), 100), DeviceSet.of(CPU))
    assert splits.count == 2, "100 to 50, then both sides to 50"


def test_reduce_tiles_sums_all_pixels(rng):
    image = rng.integers(0, 1000, SHAPE).astype(np.float32)
    total = reduce_tiles(
        lambda tile, cut: cut[tile.inner].sum(dtype=np.float64),
        [image],
        TileGrid(SHAPE, 9, halo=2),
        DeviceSet.of(CPU, 2),
    )
    assert total == image.sum(dtype=np.float64)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8])
def test_tree_sum(n):
    assert tree_sum([np.array([i, 1.0]) for i in range(n)]).tolist() == [n * (n - 1) / 2, n]


@pytest.mark.parametrize("count", COUNTS)
def test_exchange_halos_keeps_a_banded_iteration_equal_to_the_whole(rng, count):
    whole = rng.normal(size=(30, 9)).astype(np.float64)
    halo = 2
    own = [whole[i * 30 // count : (i + 1) * 30 // count] for i in range(count)]
    bands = [np.pad(rows, ((halo, halo), (0, 0))) for rows in own]

    def step(a):
        return a + np.roll(a, 1, axis=0) + np.roll(a, -1, axis=0) / 2 + np.roll(a, 2, axis=0) / 4

    padded = np.pad(whole, ((halo, halo), (0, 0)))
    for _ in range(4):
        exchange_halos(bands, halo)
        for band in bands:
            band[halo:-halo] = step(band)[halo:-halo]
        padded[halo:-halo] = step(padded)[halo:-halo]
    np.testing.assert_array_equal(np.concatenate([band[halo:-halo] for band in bands]), padded[halo:-halo])


def test_bands_are_contiguous_and_complete():
    devices = DeviceSet.of(CPU, 3)
    assert [list(b) for b in devices.bands(7)] == [[0, 1], [2, 3], [4, 5, 6]]
    assert [list(b) for b in devices.bands(1)] == [[], [], [0]]


def test_simulated_devices_share_the_memory():
    one, two = DeviceSet.of(CPU).memory_budget(), DeviceSet.of(CPU, 2).memory_budget()
    assert 2**28 < two == one // 2


def test_missing_cuda_devices_are_an_error():
    with pytest.raises(DeviceError, match="CUDA devices from cuda:0 asked for, but there are"):
        DeviceSet.of(Backend("cuda", 0), 99)


def test_capture_on_the_cpu_is_the_function_itself():
    calls = []
    replay = capture(CPU, lambda: calls.append(1))
    assert calls == []
    replay()
    replay()
    assert calls == [1, 1]


def test_workspace_reuses_by_key_and_thread():
    space = Workspace()
    first = space.array(CPU, "padded", (4, 5))
    assert space.array(CPU, "padded", (4, 5)) is first
    others = [space.array(CPU, *key) for key in (("sums", (4, 5)), ("padded", (5, 4)), ("padded", (4, 5), np.float64))]
    assert not any(np.shares_memory(first, other) for other in others)
    assert space.nbytes == 20 * (4 + 4 + 4 + 8)
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(space.array(CPU, "padded", (4, 5))))
    thread.start()
    thread.join()
    assert not np.shares_memory(first, elsewhere[0])
    space.clear()
    assert space.nbytes == 0


@pytest.mark.gpu
def test_cuda_tiles_equal_cpu_tiles_and_stay_where_the_input_is(rng):
    cuda = resolve("cuda")
    image = rng.normal(size=(300, 200)).astype(np.float32)
    grid = TileGrid(image.shape, 64, halo=1)

    def twice(tile, cut):
        return (cut + cut)[tile.inner]

    on_host = map_tiles(twice, [image], grid, DeviceSet.of(cuda))
    assert isinstance(on_host, np.ndarray)
    np.testing.assert_array_equal(on_host, image + image)
    resident = map_tiles(twice, [cuda.asarray(image)], grid, DeviceSet.of(cuda))
    assert int(resident.device.id) == cuda.index
    np.testing.assert_array_equal(resident.get(), image + image)
    total = reduce_tiles(
        lambda tile, cut: cut[tile.inner].sum(), [np.ones((99, 50))], TileGrid((99, 50), 16), DeviceSet.of(cuda)
    )
    assert total == 99 * 50


@pytest.mark.gpu
def test_captured_graph_replays(rng):
    cuda = resolve("cuda")
    a, b = cuda.asarray(rng.normal(size=1000)), cuda.asarray(np.zeros(1000))
    replay = capture(cuda, lambda: cuda.xp.add(a, 1, out=b))
    a[:] = 41
    replay()
    assert (b.get() == 42).all()


@pytest.mark.gpu
def test_arrays_move_between_devices(rng):
    cuda = resolve("cuda")
    image = rng.normal(size=(20, 30)).astype(np.float32)
    last = DeviceSet.of(cuda, 2).devices[-1] if cuda.xp.cuda.runtime.getDeviceCount() > 1 else cuda
    moved = copy_to(cuda.asarray(image)[3:9, 4:7], last)
    assert int(moved.device.id) == last.index
    np.testing.assert_array_equal(copy_to(moved, CPU), image[3:9, 4:7])
