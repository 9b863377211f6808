# SPDX-License-Identifier: BSD-3-Clause
"""One operation on several devices: tiles in contiguous bands, sums in a fixed order.

Results do not depend on the number of devices nor on the order in which they finish: a tile's pixels depend only on
the tile, and partial sums are added along a tree whose shape is the number of tiles. A tile for which a device has no
memory is split (`Cover.split`), and `counted_splits` says how often: where a function works on whatever cut it is
given, the pixels may then differ by rounding.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import numpy as np

from skydelta.kernels.backend import Array, Backend, backend_of, to_host
from skydelta.kernels.core.devices import DeviceSet, active, copy_to, streams
from skydelta.kernels.core.tiles import Cover, Tile

log = logging.getLogger(__name__)


class Splits:
    """How many tiles were split for want of memory."""

    def __init__(self) -> None:
        self.count = 0
        self._one = threading.Lock()

    def add(self) -> None:
        with self._one:
            self.count += 1


_splits: ContextVar[Splits | None] = ContextVar("splits", default=None)


@contextlib.contextmanager
def counted_splits() -> Iterator[Splits]:
    """Count the tiles that are split in what is called inside."""
    token = _splits.set(found := Splits())
    try:
        yield found
    finally:
        _splits.reset(token)


TileFunction = Callable[..., Any]
"""``function(tile, *cuts)``; each cut is an input's ``tile.halo`` on the device of the tile."""


def map_tiles(
    function: TileFunction,
    inputs: Sequence[Array],
    grid: Cover,
    devices: DeviceSet,
    dtype: Any = np.float32,
    planes: tuple[int, ...] = (),
) -> Array:
    """Fill an image tile by tile.

    Parameters
    ----------
    function : callable
        ``function(tile, *cuts)`` returns the pixels of ``tile.core``, (*planes, h, w).
    inputs : sequence of (H, W) arrays
        On the host or on a device; cut to ``tile.halo``.
    grid : TileGrid or other cover of an image by tiles
        Over the output, whose shape is that of the inputs.
    devices : DeviceSet
    dtype
        Of the output.
    planes : tuple of int
        Leading axes of the output: how many planes are made at once.

    Returns
    -------
    (*planes, H, W) array
        Where the first input is.
    """
    home = backend_of(inputs[0])
    with active(home):
        out = home.xp.empty((*planes, *grid.shape), dtype)

    def store(tile: Tile, core: Array) -> None:
        with active(home):
            out[(..., *tile.core.slices)] = copy_to(core, home)

    _each_tile(function, inputs, grid, devices, store)
    if not _at_home(inputs, devices):
        home.synchronize()
    return out


def reduce_tiles(function: TileFunction, inputs: Sequence[Array], grid: Cover, devices: DeviceSet) -> np.ndarray:
    """Sum over tiles, on the host.

    Parameters
    ----------
    function : callable
        ``function(tile, *cuts)`` returns the tile's small array of partial sums (float64).
    inputs, grid, devices
        As in `map_tiles`.

    Returns
    -------
    array
        Of the shape that the function returns.
    """
    partial: dict[tuple[int, int], list[np.ndarray]] = {}

    def store(tile: Tile, value: Array) -> None:
        partial.setdefault((tile.row, tile.column), []).append(to_host(value))

    _each_tile(function, inputs, grid, devices, store)
    return tree_sum([tree_sum(partial[key]) for key in sorted(partial)])


def tree_sum(terms: Sequence[np.ndarray]) -> np.ndarray:
    """Pairwise sum; the order is given by the number of terms alone."""
    level = list(terms)
    while len(level) > 1:
        pairs = [a + b for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


def exchange_halos(bands: Sequence[Array], halo: int) -> None:
    """Refresh the rows that neighbouring bands of one image share, in place.

    Parameters
    ----------
    bands : sequence of (h_i + 2 halo, W) arrays
        From top to bottom, each on its own device, ``halo`` rows above and below its own; h_i >= halo. The outermost
        rows of the first and last band lie outside the image and are left alone.
    halo : int
    """
    for above, below in itertools.pairwise(bands):
        up, down = backend_of(above), backend_of(below)
        with active(down):
            below[:halo] = copy_to(above[above.shape[0] - 2 * halo : above.shape[0] - halo], down)
        with active(up):
            above[above.shape[0] - halo :] = copy_to(below[halo : 2 * halo], up)


def _at_home(inputs: Sequence[Array], devices: DeviceSet) -> bool:
    """Whether all is done where the inputs are, in the order of the current stream: nothing is waited for then."""
    return len({backend.name for backend in (*devices.devices, *map(backend_of, inputs))}) == 1


def _each_tile(
    function: TileFunction,
    inputs: Sequence[Array],
    grid: Cover,
    devices: DeviceSet,
    store: Callable[[Tile, Array], None],
) -> None:
    tiles = list(grid)
    at_home = _at_home(inputs, devices)
    for source in () if at_home else inputs:
        backend_of(source).synchronize()
    splits = _splits.get()

    def work(device: Backend, band: range) -> None:
        # Two streams: a tile is sent and computed while the one before it is fetched. At home nothing is sent, and the
        # memory pool serves the current stream best.
        alternate = itertools.cycle([None, None] if at_home else streams(device, 2))
        waiting: tuple[Any, Tile, Array] | None = None
        todo = deque(tiles[i] for i in band)
        while todo:
            tile, stream = todo.popleft(), next(alternate)
            result, cuts = None, []
            try:
                with active(device, stream):
                    cuts = [copy_to(source[tile.halo.slices], device) for source in inputs]
                    result = function(tile, *cuts)
            except MemoryError as e:
                pieces = grid.split(tile)
                if not pieces:
                    raise
                log.info("%s: no memory for a tile of %s px, which is split: %s", device.name, tile.core.shape, e)
            # not inside of the handler: there, the frames of the exception hold what must be freed
            if waiting:
                _fetch(device, *waiting, store)
                waiting = None
            if result is None:
                cuts.clear()
                device.release()
                todo.extendleft(reversed(pieces))
                if splits is not None:
                    splits.add()
            else:
                waiting = stream, tile, result
        if waiting:
            _fetch(device, *waiting, store)

    jobs = [(device, band) for device, band in zip(devices.devices, devices.bands(len(tiles)), strict=True) if band]
    if len(jobs) == 1:
        work(*jobs[0])
        return
    with ThreadPoolExecutor(len(jobs)) as pool:
        for done in [pool.submit(work, *job) for job in jobs]:
            done.result()


def _fetch(device: Backend, stream: Any, tile: Tile, result: Array, store: Callable[[Tile, Array], None]) -> None:
    if stream is not None:
        stream.synchronize()
    with active(device, stream):
        store(tile, result)
