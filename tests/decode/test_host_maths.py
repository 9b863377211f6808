# SPDX-License-Identifier: BSD-3-Clause
"""decode.cuh on the host, under the sanitizers: streams as the twin decodes them, places, elements; built once."""

from types import SimpleNamespace

import numpy as np
import pytest
import support_host_cuda
from support_tiles import damaged_rows

from skydelta.kernels import decode as front
from skydelta.kernels.backend import CPU
from skydelta.kernels.cpu import decode_rice, reference_decode
from skydelta.kernels.dither import dither_table

RICE = """
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
  status[t] = tile(own.data() + shift, length[t], rice_form[3 * t], rice_form[3 * t + 1], rice_form[3 * t + 2],
                   streams + first[t]);
}
"""
STARTS, NUMBERS = (0, 41, 9998, 9999), 31000
DITHER = """
for (long long i = 0; i < n_numbers; ++i)
  numbers[i] = table[number_index(table, starts[i / (n_numbers / n_starts)], i % (n_numbers / n_starts))];
"""
WINDOW, CORNER, ORIGIN, EXTENT = (3, 7, 9), (1, -2, 4), (0, 1, 2), (4, 5, 6)
PLACES = """
Form form{};
Tile piece{};
Box box{};
form.axes = 3;
for (int d = 0; d < 3; ++d) {
  form.shape[d] = geometry[d];
  form.corner[d] = geometry[3 + d];
  box.origin[d] = geometry[6 + d];
  box.extent[d] = geometry[9 + d];
}
for (int j = 0; j < n_places; ++j) places[j] = place_of(form, piece, box, j);
"""
WIDTHS, COUNT = (1, 2, 4, 8), 101
ELEMENTS = """
long long from = 0;
for (int k = 0; k < n_widths; ++k) {
  Tile elements{};
  elements.pixels = COUNT;
  elements.width = widths[k];
  for (int shift = 0; shift < 4; ++shift) {
    std::vector<unsigned char> own(shift + COUNT * widths[k]);
    for (int i = 0; i < COUNT * widths[k]; ++i) own[shift + i] = big[from + i];
    elements.layout = BIG;
    for (int j = 0; j < COUNT; ++j) values[(5 * k + shift) * COUNT + j] = element(own.data() + shift, elements, j);
  }
  elements.layout = Layout::PLANES;
  for (int j = 0; j < COUNT; ++j) values[(5 * k + 4) * COUNT + j] = element(planes + from, elements, j);
  from += COUNT * widths[k];
}
""".replace("COUNT", str(COUNT))


def streams():
    """Sound and damaged streams of every integer and both sizes of blocks: heap, tiles, form of each, twin's answer."""
    heaps, offset, length, forms, want, status = [], [], [], [], [], []
    for seed, pixels in [(1, 130), (11, 65), (3, 33), (10, 400)]:
        heap, tiles, form = damaged_rows(np.random.default_rng(seed), 2500, pixels)
        keep = (tiles.offset >= 0) & (tiles.length >= 0) & (tiles.offset <= heap.size)
        keep &= tiles.length <= heap.size - np.where(keep, tiles.offset, 0)
        tiles = tiles.take(np.flatnonzero(keep & (tiles.length < 10000)))
        n = len(tiles)
        out, found = np.zeros(n * pixels, np.int32), np.zeros(n, np.int32)
        decode_rice.decode(
            heap, tiles.offset, tiles.length, np.arange(n) * pixels, np.full(n, pixels, np.int64), out,
            form.rice_block, form.rice_bytes, found,
        )  # fmt: skip
        offset.append(tiles.offset + sum(h.size for h in heaps))
        heaps.append(heap)
        length.append(tiles.length)
        forms.append(np.tile(np.array([[pixels, form.rice_block, 8 * form.rice_bytes]], np.int32), (n, 1)))
        want.append(out)
        status.append(found)
    joined = [np.concatenate(part) for part in (heaps, offset, length, forms, want, status)]
    return SimpleNamespace(
        **dict(zip(("heap", "offset", "length", "form", "want", "status"), joined, strict=True)), parts=status
    )


@pytest.fixture(scope="module")
def made():
    rng = np.random.default_rng(5)
    return SimpleNamespace(
        rice=streams(), elements=[rng.integers(0, 256, (COUNT, width), np.uint8) for width in WIDTHS]
    )


@pytest.fixture(scope="module")
def found(made, tmp_path_factory):
    rice = made.rice
    pixels = rice.form[:, 0].astype(np.int64)
    inputs = {
        "heap": rice.heap, "offset": rice.offset, "length": rice.length, "rice_form": rice.form.reshape(-1),
        "first": np.cumsum(pixels) - pixels, "table": dither_table(CPU), "starts": np.array(STARTS, np.int32),
        "geometry": np.array([*WINDOW, *CORNER, *ORIGIN, *EXTENT], np.int32), "widths": np.array(WIDTHS, np.int32),
        "big": np.concatenate([e.reshape(-1) for e in made.elements]),
        "planes": np.concatenate([e.T.reshape(-1) for e in made.elements]),
    }  # fmt: skip
    outputs = {
        "streams": ("int32", rice.want.size), "status": ("int32", rice.status.size),
        "numbers": ("float32", (len(STARTS), NUMBERS)), "places": ("int64", int(np.prod(EXTENT))),
        "values": ("int64", (len(WIDTHS), 5, COUNT)),
    }  # fmt: skip
    body = "using namespace decode;\n" + "".join(f"{{{part}}}\n" for part in (RICE, DITHER, PLACES, ELEMENTS))
    return support_host_cuda.run(tmp_path_factory.mktemp("maths"), "decode.cuh", body, inputs, outputs)


def test_rice_streams_sound_and_damaged(made, found):
    rice = made.rice
    np.testing.assert_array_equal(found["status"], rice.status)
    sound = np.repeat(rice.status == 0, rice.form[:, 0])
    np.testing.assert_array_equal(found["streams"][sound], rice.want[sound])
    for status in made.rice.parts:
        assert (status == 0).sum() > status.size // 20
        assert set(status.tolist()) >= {0, front.SHORT, front.TRAILING}
    assert set(rice.form[:, 1].tolist()) == {16, 32}
    assert set(rice.form[:, 2].tolist()) == {8, 16, 32}


def test_random_numbers_of_any_pixel(found):
    for start, numbers in zip(STARTS, found["numbers"], strict=True):
        np.testing.assert_array_equal(numbers, reference_decode.random_numbers(start, NUMBERS))


def test_places_in_a_window_of_a_cube(found):
    image = np.arange(1, 1 + 10 * 20 * 30).reshape(10, 20, 30)
    window = np.zeros(WINDOW, np.int64)
    for place in np.ndindex(WINDOW):
        there = tuple(np.add(place, CORNER))
        if min(there) >= 0:
            window[place] = image[there]
    tile = image[tuple(slice(o, o + e) for o, e in zip(ORIGIN, EXTENT, strict=True))].ravel()
    flat, got = window.ravel(), found["places"]
    np.testing.assert_array_equal(flat[got[got >= 0]], tile[got >= 0])
    assert (got >= 0).sum() == np.isin(tile, flat).sum() > 0


def test_elements_in_big_endian_order_and_byte_planes(made, found):
    for width, values, got in zip(WIDTHS, made.elements, found["values"], strict=True):
        want = values.view("u1" if width == 1 else f">i{width}").ravel().astype(np.int64)
        np.testing.assert_array_equal(got, np.tile(want, (5, 1)), err_msg=f"{width} bytes")
