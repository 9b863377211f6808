# SPDX-License-Identifier: BSD-3-Clause
"""encode.cuh on the host, under the sanitizers: stored words, dither positions, steps, Rice streams."""

import numpy as np
import pytest
import support_host_cuda
from cases import big_endian, quantise_tiles, rice_encode

from skydelta.kernels.backend import CPU
from skydelta.kernels.cpu import reference_encode as reference
from skydelta.kernels.dither import dither_table
from skydelta.kernels.encode import LEVELS, LOWEST, NOISE

TYPES = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int"}


@pytest.mark.parametrize("shape", [(70001, 1), (5, 2), (2003, 4), (1310, 8)])
def test_stored_words(rng, tmp_path, shape):
    case = big_endian.make(rng, shape) | {"size": shape[1], "words": rng.integers(0, 2**32, shape[0], np.uint32)}
    top = {1: "0x80808080u", 2: "0x80008000u", 4: "0x80000000u", 8: "0x80000000u"}[shape[1]] if case["flip"] else "0u"
    body = f"""
    for (long long i = 0; i < n_words; ++i)
      out[i] = (int)encode::stored(reinterpret_cast<const unsigned*>(words), i, {shape[1]}, {top});
    """
    inputs = {"words": case["words"].view(np.int32)}
    got = support_host_cuda.run(tmp_path, "encode.cuh", body, inputs, {"out": ("int32", shape[0])})
    np.testing.assert_array_equal(got["out"].view(np.uint32), reference.big_endian(**case)[0])


@pytest.mark.parametrize("stride", [1, 256])
def test_dither_runs_through_the_table_and_on_to_the_next_start(tmp_path, stride):
    body = f"""
    const int rows[] = {{0, 9998, 41}};
    for (int r = 0; r < 3; ++r) {{
      encode::Dither d;
      d.begin(table, rows[r], 3);
      for (int start = 0; start < 31000; start += {stride}) {{
        for (int k = 0; k < {stride} && start + k < 31000; ++k) out[r * 31000 + start + k] = table[d.index(table, k)];
        d.advance(table, {stride});
      }}
    }}
    """
    inputs = {"table": dither_table(CPU)}
    got = support_host_cuda.run(tmp_path, "encode.cuh", body, inputs, {"out": ("float32", (3, 31000))})
    for row, numbers in zip((0, 9998, 41), got["out"], strict=True):
        np.testing.assert_array_equal(numbers, reference.dither_numbers(row, 3, 31000))


@pytest.mark.parametrize("shape", quantise_tiles.SHAPES[:3])
def test_steps(rng, tmp_path, shape):
    case = quantise_tiles.make(rng, shape)
    image, (th, tw) = case["image"], case["tile"]
    (h, w), nx = shape, -(-shape[1] // case["tile"][1])
    body = f"""
    using namespace encode;
    const int count = {-(-h // th) * nx};
    for (int t = 0; t < count; ++t) {{
      const int y0 = t / {nx} * {th}, x0 = t % {nx} * {tw};
      const int y1 = minimum(y0 + {th}, {h}), x1 = minimum(x0 + {tw}, {w});
      double low = HUGE_VAL, high = -HUGE_VAL;
      bool reserved = false, infinite = false;
      std::vector<unsigned> keys;
      for (int y = y0; y < y1; ++y)
        for (int x = x0; x < x1; ++x) {{
          const auto* p = image + y * {w} + x;
          if (usable(*p)) {{ low = minimum(low, (double)*p); high = maximum(high, (double)*p); }}
          else if (std::isinf(*p)) infinite = true;
          else reserved = true;
          if (x >= x0 + 2 && x < x1 - 2 && usable(p[-2]) && usable(p[0]) && usable(p[2]))
            keys.push_back(distance_key(p[-2], p[0], p[2]));
        }}
      if (keys.size() < 8 || infinite) continue;
      unsigned prefix = 0, rank = (keys.size() - 1) / 2;
      for (int pass = 0; pass < DIGITS; ++pass) {{
        std::vector<unsigned> bins(BINS);
        for (unsigned key : keys) if (agrees(key, prefix, pass)) ++bins[digit(key, pass)];
        unsigned b = 0;
        while (rank >= bins[b]) rank -= bins[b++];
        prefix = prefix << digit_bits(pass) | b;
      }}
      union {{ unsigned u; float f; }} median;
      median.u = prefix;
      const double delta = product({NOISE!r}, (double)median.f) / {case["level"]};
      if (!quantisable(delta, low, high, {LEVELS})) continue;
      step[t] = delta;
      Dither d;
      d.begin(table, t, {case["seed"]});
      for (int y = y0; y < y1; ++y)
        for (int x = x0; x < x1; ++x) {{
          const auto v = image[y * {w} + x];
          if (usable(v))
            out[y * {w} + x] =
                step_of((double)v, low, 1.0 / delta, (double)table[d.index(table, 0)], reserved ? {LOWEST} : 0);
          d.advance(table, 1);
        }}
    }}
    """
    pixels, want, _, good = reference.quantise_tiles(**case)
    outputs = {"out": ("int32", shape), "step": ("float64", want.shape)}
    inputs = {"image": image, "table": dither_table(CPU)}
    got = support_host_cuda.run(tmp_path, "encode.cuh", body, inputs, outputs)
    np.testing.assert_array_equal(got["step"], want)
    assert good.any()
    ordinary = np.isfinite(image) & (image != 0)
    np.testing.assert_array_equal(got["out"][ordinary], pixels[ordinary])


@pytest.mark.parametrize("shape", rice_encode.SHAPES[:6])
def test_rice_streams(rng, tmp_path, shape):
    pixels = rice_encode.make(rng, shape)["pixels"]
    size = pixels.dtype.itemsize
    count = pixels.size
    body = f"""
    using namespace encode;
    using T = {TYPES[size]};
    std::vector<unsigned> words({count + count // 8 + 4});
    const auto or_word = [&](int i, unsigned bits) {{ words.at(i) |= bits; }};
    int at = 0;
    place(or_word, at, (T)pixels[0], Coder<T>::width);
    at += Coder<T>::width;
    for (int start = 0; start < {count}; start += 32) {{
      const int n = minimum(32, {count} - start);
      unsigned v[32];
      unsigned long long sum = 0, high = 0;
      for (int i = 0; i < n; ++i) {{
        v[i] = mapped<T>((T)pixels[start + i], (T)pixels[maximum(start + i - 1, 0)]);
        sum += v[i];
      }}
      const int split = split_of(sum, n);
      for (int i = 0; i < n; ++i) high += v[i] >> minimum(split, 31);
      const int selector = selector_of<T>(sum, high, split, n), end = at + block_bits<T>(selector, high, n);
      place(or_word, at, (unsigned)selector, Coder<T>::selector);
      at += Coder<T>::selector;
      for (int i = 0; i < n; ++i) {{
        const Code code = code_of<T>(v[i], selector);
        if (code.width) place(or_word, at + code.zeros, code.value, code.width);
        at += code.zeros + code.width;
      }}
      if (at != end) throw 1;
    }}
    length[0] = (at + 7) / 8;
    for (int i = 0; i < length[0]; ++i) out[i] = words[i / 4] >> (24 - 8 * (i % 4)) & 0xff;
    """
    outputs = {"length": ("int32", 1), "out": ("uint8", 4 * (count + count // 8 + 4))}
    inputs = {"pixels": pixels.astype(np.int32)}
    got = support_host_cuda.run(tmp_path, "encode.cuh", body, inputs, outputs)
    assert got["out"][: got["length"][0]].tobytes() == reference.rice_stream(pixels.ravel())
