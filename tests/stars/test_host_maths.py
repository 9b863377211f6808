# SPDX-License-Identifier: BSD-3-Clause
"""background.cuh on the host, under the sanitizers: order of keys, radix selection, edges of cells."""

import numpy as np
import pytest
import support_host_cuda

from skydelta.kernels.core.tiles import TileGrid

SELECT = """
  using namespace background;
  for (long long k = 0; k < n_ranks; ++k) {
    unsigned prefix = 0;
    int rank = ranks[k];
    for (int pass = 0; pass < DIGITS; ++pass) {
      int bins[BINS] = {};
      for (long long i = 0; i < n_values; ++i)
        if (agrees(key_of(values[i]), prefix, pass)) ++bins[digit(key_of(values[i]), pass)];
      int b = 0;
      while (rank >= bins[b]) rank -= bins[b++];
      prefix = prefix << 8 | (unsigned)b;
    }
    found[k] = value_of(prefix);
  }
"""


def test_radix_selection_gives_order_statistics(rng, tmp_path):
    values = np.concatenate(
        [rng.normal(0, 1, 200), rng.normal(3e4, 5, 50), rng.normal(-1e-30, 1e-31, 50), [0, 0, 1e38]]
    )
    values = rng.permutation(values).astype(np.float32)
    ranks = np.arange(len(values), dtype=np.int32)
    inputs = {"values": values, "ranks": ranks}
    made = support_host_cuda.run(tmp_path, "background.cuh", SELECT, inputs, {"found": ("float32", ranks.shape)})
    np.testing.assert_array_equal(made["found"], np.sort(values))


@pytest.mark.parametrize(("length", "size"), [(2048, 128), (511, 51), (1023, 100), (7, 16), (65000, 128)])
def test_cells_are_those_of_the_tile_grid(tmp_path, length, size):
    grid = TileGrid((length, 1), size)
    count = grid.counts[0]
    body = f"for (int i = 0; i <= {count}; ++i) edges[i] = background::edge(i, {length}, {count});"
    made = support_host_cuda.run(tmp_path, "background.cuh", body, {}, {"edges": ("int32", (count + 1,))})
    assert made["edges"].tolist() == grid.edges(0)
