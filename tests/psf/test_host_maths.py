# SPDX-License-Identifier: BSD-3-Clause
"""psf.cuh on the host, under the sanitizers, against the references of the PSF kernels."""

import numpy as np
import pytest
import support_host_cuda
from cases import compare_stars, pixel_departure, profile_sums, star_stamps
from support_conformance import close, reference


def run_psf(tmp_path, body, inputs, outputs):
    arrays = {k: v.astype(np.uint8) if v.dtype == bool else v for k, v in inputs.items() if isinstance(v, np.ndarray)}
    return support_host_cuda.run(tmp_path, "psf.cuh", "using namespace psf;\n" + body, arrays, outputs)


def field_of(case):
    return f"""
      Field field = {{}};
      field.slope = {case["slope"]};
      for (int k = 0; k < n_coefficients; ++k) field.c[k] = coefficients[k];
    """


@pytest.mark.parametrize("shape", [(30, 12), (7, 16)])
def test_stamps_are_shifted(rng, tmp_path, shape):
    case = star_stamps.make(rng, shape)
    (count, half), (h, w) = shape, case["image"].shape
    m, side = 2 * half + 1, 2 * half + 1 + 12
    missing = case["mask"] is None
    body = f"""
      const Planes planes{{image, {"nullptr, nullptr" if missing else "variance, mask"}, {h}, {w}, {case["invalid"]}}};
      std::vector<double> along({side * m});
      for (int s = 0; s < {count}; ++s) {{
        const int i = (int)std::rint(x[s]), j = (int)std::rint(y[s]);
        for (int k = 0; k < {side * m}; ++k) {{
          along[k] = 0;
          for (int c = 0; c < {side}; ++c)
            along[k] += faded_pixel(planes, j, i, k / {m}, c, {side}) *
                        shift_weight(c - MARGIN - k % {m} + i - x[s], {side});
        }}
        for (int k = 0; k < {m * m}; ++k) {{
          double sum = 0;
          for (int r = 0; r < {side}; ++r)
            sum += along[r * {m} + k % {m}] * shift_weight(r - MARGIN - k / {m} + j - y[s], {side});
          values[s * {m * m} + k] = sum;
          usable[s * {m * m} + k] = planes.usable(j + k / {m} - {half}, i + k % {m} - {half});
        }}
      }}
    """
    outputs = {"values": (np.float64, (count, m, m)), "usable": (np.uint8, (count, m, m))}
    got = run_psf(tmp_path, body, case, outputs)
    values, _, usable, _ = reference("star_stamps", case)
    close(got["values"], values, "star_stamps")
    np.testing.assert_array_equal(got["usable"] != 0, usable)


@pytest.mark.parametrize("shape", [(40, 33), (7, 25), (9, 57)])
def test_profiles_and_their_sums(rng, tmp_path, shape):
    case = profile_sums.make(rng, shape)
    count, m = shape
    terms = case["phi"].shape[1]
    body = f"""
      {field_of(case)}
      for (int s = 0; s < {count}; ++s) {{
        const Profile profile(field, phi + s * {terms}, {terms});
        double total = 0, sums[PROFILE_SUMS] = {{}};
        for (int k = 0; k < {m * m}; ++k) {{
          const double dx = k % {m} - {m // 2}, dy = k / {m} - {m // 2};
          stamps[s * {m * m} + k] = profile.at(dx, dy);
          total += profile.at(dx, dy);
          const int at = s * {m * m} + k;
          if (used[s] && kept[at] && dx * dx + dy * dy <= {case["reach"] ** 2})
            add_profile_pixel(sums, profile, profile.amplitude(flux[s]), dx, dy, noise[s], values[at] - sky[s]);
        }}
        for (int k = 0; k < {m * m}; ++k) stamps[s * {m * m} + k] /= total;
        eliminate_amplitude(sums, out + 20 * s);
      }}
    """
    outputs = {"out": (np.float64, (count, 20)), "stamps": (np.float64, (count, m, m))}
    got = run_psf(tmp_path, body, case, outputs)
    close(got["out"], reference("profile_sums", case), "profile_sums")
    field = {k: case[k] for k in ("phi", "coefficients", "slope")}
    close(got["stamps"], reference("profile_stamps", field | {"side": m}), "profile_stamps")


@pytest.mark.parametrize("shape", [(40, 33), (7, 25), (30, 15)])
def test_pixels_are_solved(rng, tmp_path, shape):
    case = pixel_departure.make(rng, shape)
    count, m = shape
    terms = case["phi"].shape[1]
    body = f"""
      constexpr int P = {terms}, PAIRS = P * (P + 1) / 2;
      double matrix[PAIRS] = {{}};
      for (int k = -1; k < {m * m}; ++k) {{
        double a[PAIRS] = {{}}, b[P] = {{}};
        for (int s = 0; s < {count}; ++s) {{
          const int at = s * {m * m} + (k < 0 ? 0 : k);
          const double w = used[s] && (k < 0 || kept[at])
                               ? star_weight(flux[s], noise[s], profiles[s * {m * m} + {m * m // 2}]) : 0;
          for (int p = 0, i = 0; p < P; ++p) {{
            for (int q = 0; q <= p; ++q) a[i++] += w * phi[s * P + p] * phi[s * P + q];
            b[p] += w * phi[s * P + p] * ((values[at] - sky[s]) / flux[s] - profiles[at]);
          }}
        }}
        if (k < 0) {{
          for (int i = 0; i < PAIRS; ++i) matrix[i] = a[i];
          continue;
        }}
        for (int i = 0; i < PAIRS; ++i) a[i] += 1e-6 * matrix[i];
        solve_lower<P>(a, b);
        for (int p = 0; p < P; ++p) out[p * {m * m} + k] = b[p];
      }}
    """
    got = run_psf(tmp_path, body, case, {"out": (np.float64, (terms, m, m))})
    close(got["out"].reshape(terms, -1), reference("pixel_departure", case)[:, : m * m], "pixel_departure")


@pytest.mark.parametrize("shape", [(40, 33), (7, 25), (30, 15)])
def test_stars_are_compared(rng, tmp_path, shape):
    case = compare_stars.make(rng, shape)
    count, m = shape
    terms, pixels, fwhm = case["phi"].shape[1], m * m, case["fwhm"]
    width, sigma = int(3 * fwhm / np.sqrt(8 * np.log(2)) + 0.5), fwhm / np.sqrt(8 * np.log(2))
    taps = np.exp(-0.5 * (np.arange(-width, width + 1) / sigma) ** 2)
    body = f"""
      std::vector<double> model({pixels}), deviation({pixels}), lines({2 * pixels});
      for (int s = 0; s < {count}; ++s) {{
        const int first = s * {pixels};
        double total = 0, peak = -1e300, flux, sky, s1 = 0, sp = 0, spp = 0, sv = 0, spv = 0, sums[COMPARED] = {{}};
        for (int k = 0; k < {pixels}; ++k) {{
          model[k] = profiles[first + k];
          for (int t = 0; t < {terms}; ++t) model[k] += phi[s * {terms} + t] * departure[t * {pixels} + k];
          total += model[k];
        }}
        for (int k = 0; k < {pixels}; ++k) {{
          model[k] /= total;
          peak = maximum(peak, model[k]);
          if (!kept[first + k]) continue;
          s1 += 1, sp += model[k], spp += model[k] * model[k];
          sv += values[first + k], spv += values[first + k] * model[k];
        }}
        fit_flux(s1, sp, spp, sv, spv, &flux, &sky);
        for (int k = 0; k < {pixels}; ++k) {{
          const double d = values[first + k] - sky - flux * model[k];
          const double r2 = (k % {m} - {m // 2}) * (k % {m} - {m // 2}) + (k / {m} - {m // 2}) * (k / {m} - {m // 2});
          deviation[k] = usable[first + k] ? d : 0;
          after[first + k] = usable[first + k] && (!clipped(d, flux * model[k], variance[first + k]) ||
                                                   r2 <= {0.25 * fwhm**2});
        }}
        for (int k = 0; k < {pixels}; ++k) {{
          if (usable[first + k])
            add_compared_pixel(sums, model.data(), {m}, k / {m}, k % {m}, deviation[k], variance[first + k], {fwhm});
          lines[k] = filtered(deviation.data() + k / {m} * {m}, 1, k % {m}, {m}, taps, {width});
          lines[{pixels} + k] = filtered(model.data() + k / {m} * {m}, 1, k % {m}, {m}, taps, {width});
        }}
        double strongest = 0;
        for (int k = 0; k < {pixels}; ++k) {{
          const double r2 = (k % {m} - {m // 2}) * (k % {m} - {m // 2}) + (k / {m} - {m // 2}) * (k / {m} - {m // 2});
          if (r2 > {4 * fwhm**2}) continue;
          const double d = filtered(lines.data() + k % {m}, {m}, k / {m}, {m}, taps, {width});
          const double p = filtered(lines.data() + {pixels} + k % {m}, {m}, k / {m}, {m}, taps, {width});
          const double own = MODEL_ERROR * flux * p;
          strongest = maximum(strongest, fabs(d) / sqrt(blurred[first + k] + own * own));
        }}
        double* row = rows + s;
        row[FLUX * {count}] = flux;
        row[SKY * {count}] = sky;
        row[RESIDUAL * {count}] = strongest;
        compared_rows(sums, flux, flux * peak, row, {count});
      }}
    """
    outputs = {"rows": (np.float64, (8, count)), "after": (np.uint8, (count, m, m))}
    got = run_psf(tmp_path, body, case | {"taps": taps / taps.sum()}, outputs)
    rows, after = reference("compare_stars", case)
    close(got["rows"], rows, "compare_stars")
    np.testing.assert_array_equal(got["after"] != 0, after)
