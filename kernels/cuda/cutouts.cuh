// SPDX-License-Identifier: BSD-3-Clause
// One pixel of a window.
#pragma once
#include "common.cuh"

// Pixel i (raster order) of the window of side 2 half + 1 around (y, x).
template <typename T>
HD T window_pixel(const T* plane, int height, int width, int y, int x, int half, int i, T outside) {
  const int row = y - half + i / (2 * half + 1), column = x - half + i % (2 * half + 1);
  return row >= 0 && row < height && column >= 0 && column < width ? plane[(size_t)row * width + column] : outside;
}
