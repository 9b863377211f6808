# SPDX-License-Identifier: BSD-3-Clause
"""decode.cuh on the host, under the sanitizers: streams as the twin decodes them, places, elements."""

import numpy as np
import pytest
import support_host_cuda
from support_tiles import damaged_rows

from skydelta.kernels import decode as front
from skydelta.kernels.backend import CPU
from skydelta.kernels.cpu import decode_rice, reference_decode
from skydelta.kernels.dither import dither_table

RICE = """
using namespace decode;
const auto tile = [](const unsigned char* bytes, long long length, int pixels, int block, int width, int* to) {
  if (length < width / 8) return SHORT;
  Stream stream(bytes, length);
  unsigned value = stream.before(stream.at + width, width);
  stream.move(stream.at + width);
  for (int done = 0; done < pixels; done += block) {
    const int split = take_selector(stream, width);
    if (split > verbatim(width)) return SELECTOR;
    for (int i = done; i < minimum(done + block, pixels); ++i) {
      const int start = stream.at;
      unsigned v = 0;
      if (split == verbatim(width)) {
        stream.move(start + width);
        v = stream.before(stream.at, width);
      } else if (split >= 0) {
        stream.skip_code(split);
        v = code_value(stream, start, stream.at, split);
      }
      value += unmapped(v);
      to[i] = as_stored(value, width);
    }
    if (stream.is_over()) return SHORT;
  }
  return stream.goes_on() ? TRAILING : 0;
};
// each stream at the end of an allocation of its own, so that a read behind it is seen, at every alignment
for (long long t = 0; t < n_offset; ++t) {
  const int shift = t % 4;
  std::vector<unsigned char> own(length[t] + shift);
  for (long long i = 0; i < length[t]; ++i) own[i + shift] = heap[offset[t] + i];
  own.shrink_to_fit();
  status[t] = tile(own.data() + shift, length[t], PIXELS, BLOCK, WIDTH, out + t * PIXELS);
}
"""


@pytest.mark.parametrize(("seed", "pixels"), [(1, 130), (3, 65), (8, 33), (10, 400)])
def test_rice_streams_sound_and_damaged(tmp_path, seed, pixels):
    rows = 4000
    heap, tiles, form = damaged_rows(np.random.default_rng(seed), rows, pixels)
    keep = (tiles.offset >= 0) & (tiles.length >= 0) & (tiles.offset <= heap.size)
    keep &= tiles.length <= heap.size - np.where(keep, tiles.offset, 0)
    keep &= tiles.length < 10000
    tiles = tiles.take(np.flatnonzero(keep))
    n = len(tiles)
    want, status = np.zeros((n, pixels), np.int32), np.zeros(n, np.int32)
    first = np.arange(n) * pixels
    every = np.full(n, pixels, np.int64)
    decode_rice.decode(
        heap, tiles.offset, tiles.length, first, every, want.reshape(-1), form.rice_block, form.rice_bytes, status
    )
    body = RICE.replace("PIXELS", str(pixels)).replace("BLOCK", str(form.rice_block))
    got = support_host_cuda.run(
        tmp_path, "decode.cuh", body.replace("WIDTH", str(8 * form.rice_bytes)),
        {"heap": heap, "offset": tiles.offset, "length": tiles.length},
        {"out": ("int32", want.shape), "status": ("int32", n)},
    )  # fmt: skip
    np.testing.assert_array_equal(got["status"], status)
    sound = status == 0
    np.testing.assert_array_equal(got["out"][sound], want[sound])
    assert sound.sum() > n // 20
    assert set(status.tolist()) >= {0, front.SHORT, front.TRAILING}


def test_random_numbers_of_any_pixel(tmp_path):
    starts, pixels = [0, 41, 9998, 9999], 31000
    body = f"""
    const int starts[] = {{{", ".join(map(str, starts))}}};
    for (long long i = 0; i < n_out; ++i)
      out[i] = table[decode::number_index(table, starts[i / {pixels}], i % {pixels})];
    """
    got = support_host_cuda.run(
        tmp_path, "decode.cuh", body, {"table": dither_table(CPU)}, {"out": ("float32", (4, pixels))}
    )
    for start, numbers in zip(starts, got["out"], strict=True):
        np.testing.assert_array_equal(numbers, reference_decode.random_numbers(start, pixels))


def test_places_in_a_window_of_a_cube(tmp_path, rng):
    shape, corner, origin, extent = (3, 7, 9), (1, -2, 4), (0, 1, 2), (4, 5, 6)
    image = np.arange(1, 1 + 10 * 20 * 30).reshape(10, 20, 30)
    window = np.zeros(shape, np.int64)
    for place in np.ndindex(shape):
        there = tuple(np.add(place, corner))
        if min(there) >= 0:
            window[place] = image[there]
    tile = image[tuple(slice(o, o + e) for o, e in zip(origin, extent, strict=True))].ravel()
    body = f"""
    decode::Form form{{}};
    decode::Tile tile{{}};
    decode::Box box{{}};
    form.axes = 3;
    const int numbers[4][3] = {{{{{",".join(map(str, corner))}}}, {{{",".join(map(str, shape))}}},
                                {{{",".join(map(str, origin))}}}, {{{",".join(map(str, extent))}}}}};
    for (int d = 0; d < 3; ++d) {{
      form.corner[d] = numbers[0][d];
      form.shape[d] = numbers[1][d];
      box.origin[d] = numbers[2][d];
      box.extent[d] = numbers[3][d];
    }}
    for (int j = 0; j < n_out; ++j) out[j] = decode::place_of(form, tile, box, j);
    """
    got = support_host_cuda.run(tmp_path, "decode.cuh", body, {}, {"out": ("int64", tile.size)})["out"]
    flat = window.ravel()
    np.testing.assert_array_equal(flat[got[got >= 0]], tile[got >= 0])
    assert (got >= 0).sum() == np.isin(tile, flat).sum() > 0


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_elements_in_big_endian_order_and_byte_planes(tmp_path, rng, width):
    values = rng.integers(0, 256, (101, width), np.uint8)
    want = values.view("u1" if width == 1 else f">i{width}").ravel().astype(np.int64)
    body = f"""
    decode::Tile tile{{}};
    tile.pixels = 101;
    tile.width = {width};
    for (int shift = 0; shift < 4; ++shift) {{
      std::vector<unsigned char> own(shift + 101 * {width});
      for (int i = 0; i < 101 * {width}; ++i) own[shift + i] = big[i];
      tile.layout = decode::BIG;
      for (int j = 0; j < 101; ++j) out[shift * 101 + j] = decode::element(own.data() + shift, tile, j);
    }}
    tile.layout = decode::PLANES;
    for (int j = 0; j < 101; ++j) out[404 + j] = decode::element(planes, tile, j);
    """
    got = support_host_cuda.run(
        tmp_path, "decode.cuh", body, {"big": values, "planes": np.ascontiguousarray(values.T)},
        {"out": ("int64", (5, 101))},
    )["out"]  # fmt: skip
    np.testing.assert_array_equal(got, np.tile(want, (5, 1)))
