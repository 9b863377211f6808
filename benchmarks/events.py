# SPDX-License-Identifier: BSD-3-Clause
"""Time on a CUDA device, as every benchmark takes it."""

import functools

import numpy as np

from skydelta.kernels.backend import cupy


def milliseconds(run, repeat=20, queued=False):
    """Median time of a run between events on the current stream, after two runs that are not counted.

    The events span the gaps in which the device waits for the host to launch. With ``queued`` it is kept busy until
    all launches wait in its queue: what is left is the device's own time, as where many calls follow each other.
    """
    cp = cupy()
    run()
    run()
    times = []
    for _ in range(repeat):
        begin, end = cp.cuda.Event(), cp.cuda.Event()
        if queued:
            cp.copyto(*_large())
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(begin, end))
    return float(np.median(times))


@functools.cache
def _large():
    """Two arrays of 1 GiB: a copy takes longer than a host takes for a few launches."""
    cp = cupy()
    source = cp.random.random(2**28, dtype=cp.float32)
    return cp.empty_like(source), source


def copy_rate():
    """Bytes read and written by a device copy of 1 GiB over its time, GB/s: the floor of every kernel."""
    target, source = _large()
    return 2e-6 * source.nbytes / milliseconds(lambda: cupy().copyto(target, source))
