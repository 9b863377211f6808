// SPDX-License-Identifier: BSD-3-Clause
// The judgement of one pixel.
#pragma once
#include "common.cuh"

template <typename T>
HD bool usable(T value, T variance, int mask, int invalid) {
  return is_finite(value) && variance > T(0) && is_finite(variance) && !flagged(mask, invalid);
}
