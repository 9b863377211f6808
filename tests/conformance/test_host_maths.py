# SPDX-License-Identifier: BSD-3-Clause
"""The maths of the .cuh files on the host, under the sanitizers, against the references of their kernels."""

import zlib
from importlib import import_module, resources
from pathlib import Path

import numpy as np
import pytest
import support_host_cuda
from cases import (
    components,
    convolve_field,
    convolve_tiles,
    extrema,
    fill_masked,
    fit_lobes,
    linear_dipole,
    merge_masks,
    spline_coefficients,
    stamp_basis,
    subtract_lobes,
)
from support_conformance import close, reference

from skydelta.kernels.convolve import FIELD_ROWS
from skydelta.kernels.core.fused import C_TYPES, chains
from skydelta.kernels.cpu import reference_inflate
from skydelta.kernels.cuda import crc
from skydelta.kernels.fit import BOUND, MAX_EVALUATIONS, SETTLED, TURNS


def test_every_file_is_tried():
    tests = Path(__file__).resolve().parents[1]
    text = "".join(p.read_text() for p in tests.rglob("test_host_maths.py"))
    files = {f.name for f in resources.files("skydelta.kernels.cuda").iterdir() if f.name.endswith(".cuh")}
    chained = {step.file for chain in chains().values() for step in chain.steps}
    assert not {file for file in files - chained if f'"{file}"' not in text}


@pytest.mark.parametrize("shape", [(37, 53), (3, 100)])
def test_convolution(tmp_path, rng, shape):
    case = convolve_tiles.make(rng, shape)
    plane, kernels, tile = case["plane"], case["kernels"], case["tile"]
    (h, w), (kh, kw) = shape, kernels.shape[2:]
    runs, stride = -(-w // 8), -(-kw // 8) * 8
    padded = np.zeros((h + kh - 1, 8 * (runs + kw // 8 + 1)), np.float32)
    padded[kh // 2 : kh // 2 + h, kw // 2 : kw // 2 + w] = plane
    taps = np.zeros((*kernels.shape[:3], stride), np.float32)
    taps[..., :kw] = kernels[:, :, ::-1, ::-1]
    body = f"""
    for (int y = 0; y < {h}; ++y)
      for (int x = 0; x < {w}; x += RUN) {{
        const float* here = taps + (long long)((y / {tile}) * {kernels.shape[1]} + x / {tile}) * {kh * stride};
        float sum[RUN] = {{}};
        for (int j = 0; j < {kh}; ++j)
          convolve_run<{kw % 8}>(padded + (y + j) * {padded.shape[1]} + x, here + j * {stride}, {kw}, sum);
        for (int r = 0; r < RUN && x + r < {w}; ++r) out[y * {w} + x + r] = sum[r];
      }}
    """
    inputs = {"padded": padded, "taps": taps}
    got = support_host_cuda.run(tmp_path, "convolve.cuh", body, inputs, {"out": (np.float32, shape)})
    close(got["out"], reference("convolve_tiles", case), "convolve_tiles")


@pytest.mark.parametrize("shape", [(64, 64), (37, 53), (131, 270), (3, 100), (301, 40)])
def test_convolution_that_varies(tmp_path, rng, shape):
    case = convolve_field.make(rng, shape)
    order, images = case["order"], case["images"]
    (h, w), (kh, kw), rows = shape, images.shape[1:], FIELD_ROWS[order]
    exponents = [(i, j) for j in range(order + 1) for i in range(order + 1 - j)]
    terms = np.zeros((kw, kh, -(-len(exponents) // 4) * 4), np.float32)
    for p, (i, j) in enumerate(exponents):
        terms[:, :, p] = images[(i + j) * (i + j + 1) // 2 + j, ::-1, ::-1].T
    bands = -(-h // rows)
    padded = np.zeros((bands * rows + kh - 1, w + kw - 1), np.float32)
    padded[kh // 2 : kh // 2 + h, kw // 2 : kw // 2 + w] = case["plane"]
    body = f"""
    constexpr int ORDER = {order}, ROWS = {rows};
    for (int y = 0; y < {h}; y += ROWS)
      for (int x = 0; x < {w}; ++x) {{
        float sum[ORDER + 1][ROWS] = {{}};
        for (int i = 0; i < {kw}; ++i)
          convolve_varying<ORDER, ROWS>(padded + y * {w + kw - 1} + x + i, {w + kw - 1},
                                        terms + i * {kh} * Tap<ORDER>::SIZE, {kh}, u + x * (ORDER + 1), sum);
        for (int r = 0; r < ROWS && y + r < {h}; ++r)
          for (int j = 0; j <= ORDER; ++j) out[(y + r) * {w} + x] += v[(y + r) * (ORDER + 1) + j] * sum[j][r];
      }}
    """
    inputs = {
        "padded": padded,
        "terms": terms,
        **{name: np.polynomial.chebyshev.chebvander(case[name], order).astype(np.float32) for name in "uv"},
    }
    got = support_host_cuda.run(tmp_path, "convolve.cuh", body, inputs, {"out": (np.float32, shape)})
    close(got["out"], reference("convolve_field", case), "convolve_field")


def test_filling(tmp_path, rng):
    shape = h, w = 37, 53
    case = fill_masked.make(rng, shape)
    good = case["good"]
    taps = np.exp(-0.5 * (np.arange(-12, 13) / 3.0) ** 2)
    zeroed = np.where(good, case["image"], 0)
    padded = np.stack([np.pad(a.astype(np.float32), 12, mode="edge") for a in (good, zeroed)])
    body = f"""
    const int side = {w + 24};
    std::vector<float> down({h} * side), weight({h * w});
    for (int q = 0; q < 2; ++q) {{
      const float* here = padded + q * {(h + 24) * (w + 24)};
      for (int i = 0; i < {h} * side; ++i) down[i] = weighted_sum(here + i, side, taps, 25);
      for (int i = 0; i < {h * w}; ++i) {{
        const float sum = weighted_sum(down.data() + i / {w} * side + i % {w}, 1, taps, 25);
        if (q == 0) weight[i] = sum;
        out[i] = filling(sum, weight[i]);
      }}
    }}
    """
    inputs = {"padded": padded, "taps": (taps / taps.sum()).astype(np.float32)}
    got = support_host_cuda.run(tmp_path, "convolve.cuh", body, inputs, {"out": (np.float32, shape)})
    want, _ = reference("fill_masked", case)
    close(got["out"][~good], want[~good], "fill_masked")


@pytest.mark.parametrize("shape", [(37, 53), (3, 100)])
def test_masks(tmp_path, rng, shape):
    case = merge_masks.make(rng, shape)
    h, w = shape
    body = f"""
    for (int i = 0; i < {h * w}; ++i) {{
      out[i] = translate_bits(moved[i], moved_bits) | translate_bits(fixed[i], fixed_bits);
      if (!reached[i]) continue;
      const int around = bits_around(moved, {h}, {w}, i / {w}, i % {w}, {case["reach"]}, {case["spreading"]});
      out[i] |= translate_bits(around, moved_bits);
    }}
    """
    inputs = {name: case[name] for name in ("moved", "fixed", "moved_bits", "fixed_bits")}
    inputs["reached"] = case["reached"].astype(np.uint8)
    got = support_host_cuda.run(tmp_path, "masks.cuh", body, inputs, {"out": (np.int32, shape)})["out"]
    np.testing.assert_array_equal(got, reference("merge_masks", case | {"edge": 0, "no_data": 0}))


def test_stamp_basis(tmp_path, rng):
    case = stamp_basis.make(rng, (3, 9))
    stamps, pairs, k = case["stamps"], case["pairs"], case["rows"].shape[1]
    count, side = stamps.shape[:2]
    m = side - k + 1
    body = f"""
    std::vector<double> along({side * m});
    for (int s = 0; s < {count}; ++s)
      for (int b = 0; b < {len(pairs)}; ++b) {{
        for (int i = 0; i < {side * m}; ++i)
          along[i] = convolve_line(stamps + s * {side * side} + (i / {m}) * {side} + i % {m}, 1,
                                   rows + pairs[2 * b] * {k}, {k});
        for (int i = 0; i < {m * m}; ++i)
          out[(s * {len(pairs)} + b) * {m * m} + i] =
              convolve_line(along.data() + i, {m}, columns + pairs[2 * b + 1] * {k}, {k});
      }}
    """
    outputs = {"out": (np.float64, (count, len(pairs), m, m))}
    got = support_host_cuda.run(tmp_path, "normal_equations.cuh", body, case, outputs)
    close(got["out"], reference("stamp_basis", case), "stamp_basis")


@pytest.mark.parametrize("shape", [(37, 53), (1, 40), (5, 1)])
def test_peaks(tmp_path, rng, shape):
    case = extrema.make(rng, shape)
    body = f"""
    for (int y = 0; y < {shape[0]}; ++y)
      for (int x = 0; x < {shape[1]}; ++x)
        out[y * {shape[1]} + x] = peak_sign(image, {shape[0]}, {shape[1]}, y, x, {case["threshold"]}f);
    """
    outputs = {"out": (np.int32, shape)}
    got = support_host_cuda.run(tmp_path, "detect.cuh", body, {"image": case["image"]}, outputs)
    found = np.flatnonzero(got["out"])
    index, value = reference("extrema", case)
    np.testing.assert_array_equal(found, index)
    np.testing.assert_array_equal(got["out"].ravel()[found], np.sign(value))


def test_components(tmp_path, rng):
    shape = h, w = 37, 53
    case = components.make(rng, shape)
    body = f"""
    const float t = {case["threshold"]}f;
    for (int i = 0; i < {h * w}; ++i) root[i] = i + 1;
    for (int y = 0; y < {h}; ++y)
      for (int x = 0; x < {w}; ++x)
        for (int j = y - 1; j <= y; ++j)
          for (int i = x - 1; i <= x + 1; ++i) {{
            const int here = y * {w} + x, there = j * {w} + i;
            if (j < 0 || i < 0 || i >= {w} || there >= here || !joined(image[here], image[there], t)) continue;
            const int a = find_root(root, here), b = find_root(root, there);
            root[maximum(a, b)] = minimum(a, b) + 1;
          }}
    for (int i = 0; i < {h * w}; ++i) root[i] = find_root(root, i) + 1;
    """
    outputs = {"root": (np.int32, shape)}
    root = support_host_cuda.run(tmp_path, "detect.cuh", body, {"image": case["image"]}, outputs)["root"]
    labels, area = reference("components", case)
    inside = labels > 0
    # The root of a component is its first pixel in raster order, and components are numbered by it.
    found, number = np.unique(root[inside], return_inverse=True)
    assert len(found) == len(area)
    np.testing.assert_array_equal(number + 1, labels[inside])


@pytest.mark.parametrize("shape", [(15, 1), (21, 2), (15, 1, 0), (21, 1, 3), (21, 2, 0), (19, 2, 3)])
def test_fits(tmp_path, rng, shape):
    case = fit_lobes.make(rng, shape)
    side, lobes, terms = (*shape, 1)[:3]
    count, p, n, size = len(case["data"]), case["psf"].shape[1], 3 * lobes + terms, 3 + terms
    moments = f"""
        double m[{size}], mc[{size * size}], x2;
        if (fit.evaluations == 0 && solve_linear<1>(sums, m, &x2, mc))
          for (int i = 0; i < {size}; ++i) moment[{size} * k + i] = m[i];
    """
    level = "fit.flux + 1, B" if terms else "nullptr, B"
    sharpness = f"sharpness[k] = sharpness_of(d, w, c, p, s, fit.flux[0], fit.q[0], fit.q[1], {level});"
    body = f"""
    constexpr int K = {lobes}, B = {terms}, N = {n}, s = {side}, p = {p};
    for (int k = 0; k < {count}; ++k) {{
      const float *d = data + stamp[k] * s * s, *w = weight + stamp[k] * s * s;
      const double* c = psf + stamp[k] * p * p;
      Optimiser<K, B> fit;
      double matrix[N * N];
      fit.begin(start + k * 2 * K, {BOUND}, {MAX_EVALUATIONS});
      while (fit.running) {{
        Sums<K, B> sums;
        Taps taps[2 * K];
        sums.clear();
        for (int i = 0; i < 2 * K; ++i) taps[i].place(fit.trial[i], s, p);
        for (int band = 0; band < 3; ++band)
          for (int x = 0; x < s; ++x)
            add_column(sums, d, w, c, p, s, taps, x, s * band / 3, s * (band + 1) / 3);
        {moments if lobes == 1 else ""}
        fit.step(sums);
      }}
      const bool ok = fit.covariance(matrix);
      status[k] = fit.status == FIT_CONVERGED && !ok ? FIT_SINGULAR : fit.status;
      for (int i = 0; i < N * N; ++i) covariance[k * N * N + i] = ok ? matrix[i] : quiet_nan();
      for (int l = 0; l < K; ++l) {{
        parameters[k * N + 3 * l] = fit.flux[l];
        parameters[k * N + 3 * l + 1] = fit.q[2 * l];
        parameters[k * N + 3 * l + 2] = fit.q[2 * l + 1];
      }}
      for (int i = 0; i < B; ++i) parameters[k * N + 3 * K + i] = fit.flux[K + i];
      chi2[k] = fit.chi2;
      {sharpness if lobes == 1 else ""}
    }}
    """
    outputs = {
        "parameters": (np.float64, (count, n)),
        "covariance": (np.float64, (count, n, n)),
        "chi2": (np.float64, count),
        "status": (np.int32, count),
        "moment": (np.float64, (count, size)),
        "sharpness": (np.float64, count),
    }
    got = support_host_cuda.run(tmp_path, "fit.cuh", body, case, outputs)
    parameters, covariance, chi2, _, status, _, moment, *_, sharpness = reference("fit_lobes", case)
    np.testing.assert_array_equal(got["status"], status)
    for name, want in (("parameters", parameters), ("covariance", covariance), ("chi2", chi2)):
        close(got[name], want, "fit_lobes")
    if lobes == 1:
        known = ~np.isnan(moment)
        close(got["moment"][known], moment[known], "fit_lobes")
        close(got["sharpness"], sharpness, "fit_lobes")


@pytest.mark.parametrize("shape", linear_dipole.SHAPES[:2])
def test_linear_dipoles(tmp_path, rng, shape):
    case, (side, terms) = linear_dipole.make(rng, shape), shape
    p = case["psf"].shape[1]
    body = f"""
    constexpr int s = {side}, p = {p}, B = {terms};
    for (long long k = 0; k < n_stamp; ++k) {{
      const float *d = data + stamp[k] * s * s, *w = weight + stamp[k] * s * s;
      LinearDipole<B> fit;
      fit.begin(start + 2 * k, width[k], {BOUND}, {SETTLED}, {TURNS});
      while (fit.running) {{
        for (int b = 0; b < LinearDipole<B>::BESIDE; ++b) {{
          double place[2];
          fit.place(b, place);
          Sums<1, B> sums;
          Taps taps[2];
          sums.clear();
          for (int i = 0; i < 2; ++i) taps[i].place(place[i], s, p);
          for (int x = 0; x < s; ++x) add_column<1, B>(sums, d, w, psf + stamp[k] * p * p, p, s, taps, x, 0, s);
          fit.take(b, sums);
        }}
        fit.turn();
      }}
      fit.result(out + LinearDipole<B>::ROW * k);
    }}
    """
    want = reference("linear_dipole", case)
    given = {name: value for name, value in case.items() if name != "terms"}
    got = support_host_cuda.run(tmp_path, "moment.cuh", body, given, {"out": (np.float64, want.shape)})
    close(got["out"], want, "linear_dipole")


@pytest.mark.parametrize("shape", subtract_lobes.SHAPES)
def test_lobes_are_taken_away(tmp_path, rng, shape):
    side, p = shape
    case = subtract_lobes.make(rng, shape)
    body = f"""
    for (long long i = 0; i < n_out; ++i) {{
      const long long k = i / {side**2}, at = i % {side**2};
      out[i] = data[i];
      for (int l = first[k]; l < first[k + 1] && weight[i] > 0; ++l) {{
        Taps across, down;
        across.place(lobes[3 * l + 1], {side}, {p});
        down.place(lobes[3 * l + 2], {side}, {p});
        out[i] -= (float)(lobes[3 * l] * psf_at(psf + k * {p * p}, {p}, across, down, at % {side}, at / {side}));
      }}
    }}
    """
    outputs = {"out": (np.float32, case["data"].shape)}
    got = support_host_cuda.run(tmp_path, "fit.cuh", body, case, outputs)
    close(got["out"], reference("subtract_lobes", case), "subtract_lobes")


@pytest.mark.parametrize("shape", spline_coefficients.SHAPES)
def test_spline_filter(tmp_path, rng, shape):
    height, width = shape
    case = spline_coefficients.make(rng, shape)
    body = f"""
    const int height = {height}, width = {width};
    double ratio[{max(shape)}];
    for (long long i = 0; i < n_psf; ++i) out[i] = psf[i];
    spline_ratios(ratio, height);
    for (long long k = 0; k < n_psf / (height * width); ++k)
      for (int i = 0; i < width; ++i) spline_line(out + k * height * width + i, height, width, ratio);
    spline_ratios(ratio, width);
    for (long long line = 0; line < n_psf / width; ++line) spline_line(out + line * width, width, 1, ratio);
    """
    outputs = {"out": (np.float64, case["psf"].shape)}
    got = support_host_cuda.run(tmp_path, "fit.cuh", body, case, outputs)
    close(got["out"], reference("spline_coefficients", case), "spline_coefficients")


HOST = """
struct Index { int x, y; };
[[maybe_unused]] static Index blockIdx, blockDim, threadIdx, gridDim;
#define __global__ [[maybe_unused]] static
"""


def stored(a):
    """What a C++ vector holds of an array."""
    return a.view({"bool": np.uint8, "complex64": np.float32}.get(a.dtype.name, a.dtype))


@pytest.mark.parametrize("name", sorted(chains()))
def test_fused_chain(tmp_path, rng, name):
    """The generated kernel itself, one thread after the other."""
    chain, case = chains()[name], import_module(f"cases.{name}").make(rng, (37, 53))
    want = chain(**case)
    (tmp_path / "chain.cuh").write_text(HOST + chain.source.text)

    def pointer(kind, n):
        return f"({C_TYPES[chain.types[n]]}*){kind}_{n}"

    arrays = {n: stored(case[n]) for n in (*chain.planes, *chain.per_tile)}
    scalars = [f"(float){float(np.float32(case[n]))!r}" for n in chain.scalars]
    made = [pointer("o", n) for n in chain.outputs]
    pixels = ["53"] if chain.per_tile else []
    arguments = ", ".join([*(pointer("p", n) for n in arrays), *pixels, *scalars, *made, str(37 * 53)])
    body = f"""
    blockDim.x = 64;
    for (blockIdx.x = 0; blockIdx.x < 31; ++blockIdx.x)
      for (threadIdx.x = 0; threadIdx.x < 64; ++threadIdx.x) {chain.entry}({arguments});
    """
    outputs = {f"o_{n}": (stored(a).dtype, stored(a).shape) for n, a in want.items()}
    inputs = {f"p_{n}": a for n, a in arrays.items()}
    got = support_host_cuda.run(tmp_path, "chain.cuh", body, inputs, outputs)
    for n, plane in want.items():
        np.testing.assert_array_equal(got[f"o_{n}"].view(plane.dtype), plane)


def test_crc32(tmp_path, rng):
    """Stretches of every small size, and sums moved past bytes that are 0."""
    data, most = rng.integers(0, 256, 3000, np.uint8), 600
    body = """
    using namespace crc;
    const unsigned* all = (const unsigned*)tables;
    for (int n = 0; n < n_out; ++n) {
      const std::vector<unsigned char> exact(data, data + n);  // what is read behind its end shows
      unsigned sum = 0;
      for (int own = 0; own < THREADS; ++own)
        sum ^= share(exact.data(), n, own, ~0u, all + STEPS, all + SHIFTS);
      if (n < 4) sum ^= past(~0u, n, all + POWERS);
      out[n] = (int)~past(sum, 1000000 + n, all + POWERS);
    }
    """
    inputs = {"data": data, "tables": crc.tables().view(np.int32)}
    got = support_host_cuda.run(tmp_path, "crc.cuh", body, inputs, {"out": (np.int32, (most,))})["out"]
    zeros = bytes(1_000_000 + most)
    # the register behind the message and its zeros, which zlib inverts twice
    want = [zlib.crc32(zeros[: 1_000_000 + n], zlib.crc32(data[:n])) for n in range(0, most, 37)]
    np.testing.assert_array_equal(got[::37].view(np.uint32), want)


def test_inflating(tmp_path, rng):
    """Lengths and distances of RFC 1951, 3.2.5, orders, turned codes, and bits from anywhere in a stream."""
    data = rng.integers(0, 256, 61, np.uint8)
    body = """
    using namespace inflate;
    const std::vector<unsigned char> exact(data, data + n_data);  // what is read behind its end shows
    for (int s = 257; s <= LAST_LENGTH; ++s) {
      Bits none(exact.data(), n_data, n_data), all(exact.data(), 0, n_data);
      all.buffer = ~0ull;
      lengths[2 * (s - 257)] = match_length(s, none);
      lengths[2 * (s - 257) + 1] = match_length(s, all);
    }
    for (int s = 0; s <= LAST_DISTANCE; ++s) {
      Bits none(exact.data(), n_data, n_data), all(exact.data(), 0, n_data);
      all.buffer = ~0ull;
      distances[2 * s] = match_distance(s, none);
      distances[2 * s + 1] = match_distance(s, all);
    }
    for (int k = 0; k < ORDERS; ++k) orders[k] = ordered(k);
    for (int b = 1; b <= 15; ++b) reversed[b - 1] = turned(0x4d35u & ((1u << b) - 1u), b);
    for (int begin = 0; begin < n_data; ++begin) {
      Bits in(exact.data(), begin, n_data);
      for (int i = 0; i < 8; ++i) {
        in.fill();
        taken[8 * begin + i] = in.take(5);
      }
      places[begin] = (int)in.byte();
    }
    """
    shapes = {"lengths": (29, 2), "distances": (30, 2), "orders": (19,), "reversed": (15,), "taken": (61, 8),
              "places": (61,)}  # fmt: skip
    outputs = {name: (np.int32, shape) for name, shape in shapes.items()}
    got = support_host_cuda.run(tmp_path, "inflate.cuh", body, {"data": data}, outputs)
    first, more = (np.array(v) for v in reference_inflate.LENGTHS)
    np.testing.assert_array_equal(got["lengths"], np.stack([first, first + (1 << more) - 1], 1))
    first, more = (np.array(v) for v in reference_inflate.DISTANCES)
    np.testing.assert_array_equal(got["distances"], np.stack([first, first + (1 << more) - 1], 1))
    assert tuple(got["orders"]) == reference_inflate.ORDER
    assert [f"{v:0{b}b}"[::-1] for b, v in enumerate(got["reversed"], 1)] == [
        f"{0x4D35:015b}"[-b:] for b in range(1, 16)
    ]
    whole = int.from_bytes(data.tobytes(), "little")  # zeros behind the end
    want = [[whole >> (8 * begin + 5 * i) & 31 for i in range(8)] for begin in range(61)]
    np.testing.assert_array_equal(got["taken"], want)
    np.testing.assert_array_equal(got["places"], np.arange(61) + 5)
