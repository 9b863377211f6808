# SPDX-License-Identifier: BSD-3-Clause
"""encode.cuh and deflate.cuh on the host, under the sanitizers: stored words, dither, steps, Rice and deflate codes."""

import numpy as np
import pytest
import support_host_cuda
from cases import big_endian, quantise_tiles, rice_encode

from skydelta.kernels.backend import CPU
from skydelta.kernels.cpu import reference_deflate
from skydelta.kernels.cpu import reference_encode as reference
from skydelta.kernels.cpu.reference_inflate import DISTANCES, LENGTHS
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


def test_symbols_of_lengths_and_distances(tmp_path):
    body = """
    using namespace deflate;
    const auto keep = [](int* to, Symbol s) { to[0] = s.symbol; to[1] = s.more; to[2] = s.rest; };
    for (int n = SHORTEST; n <= LONGEST; ++n) keep(&lengths[3 * (n - SHORTEST)], length_symbol(n));
    for (int n = 1; n <= 32768; ++n) keep(&distances[3 * (n - 1)], distance_symbol(n));
    """
    outputs = {"lengths": ("int32", (256, 3)), "distances": ("int32", (32768, 3))}
    got = support_host_cuda.run(tmp_path, "deflate.cuh", body, {}, outputs)
    want = [reference_deflate.symbol_of(n, LENGTHS) for n in range(3, 259)]
    np.testing.assert_array_equal(got["lengths"] - [257, 0, 0], want)
    some = np.r_[1:300, 1000:32769:97]
    want = [reference_deflate.symbol_of(n, DISTANCES) for n in some.tolist()]
    np.testing.assert_array_equal(got["distances"][some - 1], want)


def test_codes_and_how_they_are_told(rng, tmp_path):
    """Counts of every spread, and Fibonacci's, of which a code by Huffman alone has more than 15 bits."""
    fibonacci = [1, 2]  # the end of the block is the other 1
    while len(fibonacci) < 18:
        fibonacci.append(sum(fibonacci[-2:]))
    cases = [np.minimum(rng.geometric(10.0 ** rng.uniform(-2, -0.1), 286) - 1, 50) for _ in range(30)]
    cases.append(np.r_[fibonacci, np.zeros(268)])
    counts = np.array(cases).astype(np.int32)
    counts[:, 256] = np.maximum(counts[:, 256], 1)
    counts[:, 0] = np.maximum(counts[:, 0], 1)
    n, far = len(counts), 3
    order = np.argsort(counts, axis=1, kind="stable").astype(np.int32)
    body = f"""
    using namespace deflate;
    for (int c = 0; c < {n}; ++c) {{
      Queues q;
      const int* own = counts + c * SYMBOLS;
      int used = 0;
      for (int i = 0; i < SYMBOLS; ++i)
        if (own[order[c * SYMBOLS + i]]) q.order[used++] = (unsigned short)order[c * SYMBOLS + i];
      std::vector<unsigned char> coded(SYMBOLS, 0), orders(ORDERS);
      code_lengths(q, own, used, LONGEST_CODE, coded.data());
      std::vector<unsigned> told(HEADER_WORDS, 0u);
      bits[c] = header(coded.data(), {far}, c % 2 == 1, q, orders.data(), told.data());
      int next[LONGEST_CODE + 1];
      first_codes(coded.data(), SYMBOLS, next);
      for (int s = 0; s < SYMBOLS; ++s) {{
        lengths[c * SYMBOLS + s] = coded[s];
        codes[c * SYMBOLS + s] = coded[s] ? (int)turned((unsigned)next[coded[s]]++, coded[s]) : 0;
      }}
      for (int i = 0; i < HEADER_WORDS; ++i) words[c * HEADER_WORDS + i] = (int)told[i];
    }}
    """
    outputs = {
        "bits": ("int32", n),
        "lengths": ("int32", (n, 286)),
        "codes": ("int32", (n, 286)),
        "words": ("int32", (n, 72)),
    }
    got = support_host_cuda.run(tmp_path, "deflate.cuh", body, {"counts": counts, "order": order}, outputs)
    for c, own in enumerate(counts.tolist()):
        code = reference_deflate.prefix_code(own, 15)
        assert got["lengths"][c].tolist() == [len(code.get(s, "")) for s in range(286)]
        assert got["codes"][c].tolist() == [int(code.get(s, "0")[::-1], 2) for s in range(286)]
        told = f"{c % 2}01" + reference_deflate.description(code, far)
        words = got["words"][c].view(np.uint32)
        assert "".join(f"{w:032b}"[::-1] for w in words)[: got["bits"][c]] == told
    assert got["lengths"].max() == 15


def test_chunks_roles_and_places(tmp_path):
    body = """
    using namespace deflate;
    int k = 0;
    for (int again = 0; again < 2; ++again)
      for (int next = 0; next < 2; ++next)
        for (int run = 1; run <= 600; ++run) {
          const Role r = role(again, next, run);
          roles[k++] = r.literals;
          roles[k++] = r.match;
        }
    const long long piece = 2 * CHUNK + 5;
    for (int c = 0; c < 12; ++c) {
      const Chunk chunk(7, c, 4, 3, piece, 1);
      places[4 * c] = chunk.begin;
      places[4 * c + 1] = chunk.size;
      places[4 * c + 2] = chunk.first;
      places[4 * c + 3] = chunk.last;
    }
    for (int at = 0; at < 16; ++at) {
      ends[2 * at] = behind(at, 77, 100);
      ends[2 * at + 1] = behind(at, 0, 100);
    }
    """
    outputs = {"roles": ("int32", (2, 2, 600, 2)), "places": ("int64", (3, 4, 4)), "ends": ("int64", (16, 2))}
    got = support_host_cuda.run(tmp_path, "deflate.cuh", body, {}, outputs)
    assert (got["roles"][0] == [1, 0]).all()
    length = np.arange(600) % 258 + 1
    np.testing.assert_array_equal(got["roles"][1, 0, :, 1], np.where(length < 6, 0, length))
    np.testing.assert_array_equal(got["roles"][1, 0, :, 0], np.where(length < 6, length, 0))
    np.testing.assert_array_equal(got["roles"][1, 1, :, 1], np.where(length == 258, 258, 0))
    assert (got["roles"][1, 1, :, 0] == 0).all()
    chunk, piece = 1 << 14, 2 * (1 << 14) + 5
    for p in range(3):
        for k in range(4):
            size = min(max(piece - k * chunk, 0), chunk)
            want = [p * piece + k * chunk, size, p == k == 0, (p, k) == (2, 2)]
            assert got["places"][p, k].tolist() == want
    assert got["ends"][:, 0].tolist() == [at + 77 for at in range(16)]
    assert got["ends"][:, 1].tolist() == [-(-(at + 3) // 8) * 8 + 32 + 800 for at in range(16)]
