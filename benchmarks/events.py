# SPDX-License-Identifier: BSD-3-Clause
"""Time on a CUDA device, as every benchmark takes it."""

import numpy as np

from skydelta.kernels.backend import cupy


def milliseconds(run, repeat=20):
    """Median time of a run between events on the current stream, after two runs that are not counted."""
    cp = cupy()
    run()
    run()
    times = []
    for _ in range(repeat):
        begin, end = cp.cuda.Event(), cp.cuda.Event()
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(begin, end))
    return float(np.median(times))


def copy_rate():
    """Bytes read and written by a device copy of 1 GiB over its time, GB/s: the floor of every kernel."""
    cp = cupy()
    source = cp.random.random(2**28, dtype=cp.float32)
    target = cp.empty_like(source)
    return 2e-6 * source.nbytes / milliseconds(lambda: cp.copyto(target, source))
