// SPDX-License-Identifier: BSD-3-Clause
// The sky of a mesh cell: its values sorted through buckets, then clipped by moving two ends; blocks of pixels that
// stand out of the sky.
#pragma once
#include "common.cuh"

namespace background {

// ---- cells ----

// A key that orders as the finite float does: sign flipped, and all bits of negative numbers.
HD unsigned key_of(float v) {
  union {
    float f;
    unsigned u;
  } bits;
  bits.f = v;
  return bits.u & 0x80000000u ? ~bits.u : bits.u | 0x80000000u;
}

HD float value_of(unsigned key) {
  union {
    float f;
    unsigned u;
  } bits;
  bits.u = key & 0x80000000u ? key & 0x7fffffffu : ~key;
  return bits.f;
}

// First pixel of cell i when n pixels are split into `cells` of nearly equal size.
HD int edge(int i, int n, int cells) { return (int)((long long)n * i / cells); }

// Buckets that follow the order of the values: equal steps up to `1 / inverse` from the centre, then equal steps of the
// float's bits, which are nearly those of its logarithm. Where the centre lies only decides how full the buckets get.
struct Buckets {
  float centre, inverse;
  int tail, half, shift;  // buckets of either tail, of either half of the core, bits of a float inside one of the tail

  // `count` is a power of two, 64 at least; 3/4 of the buckets are the core.
  HD Buckets(float centre, float scale, int count)
      : centre(centre), inverse(1.0f / minimum(maximum(scale, 1e-30f), 1e37f)), tail(count / 8),
        half(3 * count / 8 - 1), shift(29) {
    for (int n = count; n > 1; n /= 2) --shift;
  }

  HD int of(float v) const {
    const float t = (v - centre) * inverse, size = t < 0.0f ? -t : t;
    if (size < 1.0f) return tail + half + (int)(t * (float)half);
    const unsigned one = 0x3f800000u | 0x80000000u;
    const int step = minimum((int)((key_of(size) - one) >> shift), tail - 1);
    return t > 0.0f ? tail + 2 * half + 1 + step : tail - 1 - step;
  }
};

// Sort a few keys.
HD void insertion_sort(unsigned* keys, int n) {
  for (int i = 1; i < n; ++i) {
    const unsigned key = keys[i];
    int j = i;
    for (; j > 0 && keys[j - 1] > key; --j) keys[j] = keys[j - 1];
    keys[j] = key;
  }
}

HD void order(unsigned* keys, int low, int high, int n) {
  if (high >= n) return;  // as if infinite keys followed the last one
  const unsigned a = keys[low], b = keys[high];
  if (a > b) {
    keys[low] = b;
    keys[high] = a;
  }
}

// Sort n keys by the threads of a team (Batcher's bitonic network with every comparison upwards, so that n need not be
// a power of two). `sync` is the team's barrier.
template <typename Sync>
HD void network_sort(unsigned* keys, int n, int thread, int threads, Sync sync) {
  int pairs = 1;
  while (2 * pairs < n) pairs *= 2;
  for (int half = 1; half < n; half *= 2) {
    for (int t = thread; t < pairs; t += threads) {
      const int inside = t & (half - 1), block = 2 * (t - inside);
      order(keys, block + inside, block + 2 * half - 1 - inside, n);
    }
    sync();
    for (int step = half / 2; step > 0; step /= 2) {
      for (int t = thread; t < pairs; t += threads) {
        const int inside = t & (step - 1), low = 2 * (t - inside) + inside;
        order(keys, low, low + step, n);
      }
      sync();
    }
  }
}

// First i in [low, high) for which test(i), high if there is none; test is false up to some i and true from there on.
// On a device all threads of a warp call it together.
template <typename Test>
HD int first(int low, int high, Test test) {
#ifdef __CUDA_ARCH__
  const int lane = threadIdx.x & 31;
  while (low < high) {
    const int step = (high - low + 31) / 32, at = low + lane * step;
    const unsigned votes = __ballot_sync(0xffffffffu, at >= high || test(at));
    const int yes = votes ? __ffs(votes) - 1 : 32;
    if (yes == 0) return low;
    high = minimum(high, low + yes * step);
    low += (yes - 1) * step + 1;
  }
  return low;
#else
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (test(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
#endif
}

struct Statistics {
  float median, deviation;
  int count;
};

// Lower median of |value - that of key `middle`| over sorted keys [low, high): some of the nearest on the left, the
// rest on the right, as many as make half of them.
HD float deviation_of(const unsigned* keys, int low, int high, int middle) {
  const float centre = value_of(keys[middle]);
  const int wanted = (high - low - 1) / 2 + 1, on_left = middle - low, on_right = high - middle;
  const auto left = [=](int i) { return centre - value_of(keys[middle - 1 - i]); };
  const auto right = [=](int i) { return value_of(keys[middle + i]) - centre; };
  const int least = maximum(0, wanted - on_right), most = minimum(on_left, wanted);
  // the fewest from the left such that the next there is no nearer than the last on the right
  const int taken = first(least, most, [=](int i) { return left(i) >= right(wanted - i - 1); });
  const float a = taken > 0 ? left(taken - 1) : 0.0f, b = taken < wanted ? right(wanted - taken - 1) : 0.0f;
  return maximum(a, b);
}

// Median and median absolute deviation of n sorted keys, after values more than `clip` deviations off have left.
HD Statistics clipped(const unsigned* keys, int n, int rounds, float clip) {
  int low = 0, high = n;
  Statistics s{0.0f, 0.0f, n};
  KEEP_LOOP
  for (int round = 0; round < rounds; ++round) {
    const int middle = low + (high - low - 1) / 2;
    const float centre = s.median = value_of(keys[middle]);
    s.deviation = deviation_of(keys, low, high, middle);
    if (s.deviation == 0.0f) break;
    const float limit = clip * s.deviation;
    low = first(low, middle, [=](int i) { return !(centre - value_of(keys[i]) > limit); });
    high = first(middle, high, [=](int i) { return value_of(keys[i]) - centre > limit; });
    if (high - low == s.count) break;
    s.count = high - low;
  }
  return s;
}

// ---- blocks ----

constexpr int BLOCK = 4;

// Sum of a block's usable pixels over the standard deviation of such a sum; NaN where none is usable. sigma (ny, nx) is
// that of a pixel in cells which divide the rows and columns of blocks evenly.
HD float block_score(const float* image, const unsigned char* good, int w, int row, int column, int rows, int columns,
                     const float* sigma, int ny, int nx) {
  float sum = 0.0f;
  int number = 0;
  UNROLL for (int y = 0; y < BLOCK; ++y) UNROLL for (int x = 0; x < BLOCK; ++x) {
    const size_t p = (size_t)(row * BLOCK + y) * w + column * BLOCK + x;
    sum += good[p] ? image[p] : 0.0f;
    number += good[p] != 0;
  }
  if (number == 0) return quiet_nan();
  const int i = (int)((2LL * row + 1) * ny / (2 * rows)), j = (int)((2LL * column + 1) * nx / (2 * columns));
  return sum / sqrtf((float)number) / sigma[i * nx + j];
}

// Any of the scores around a block, itself included, is beyond the limit.
HD bool stands_out(const float* score, int rows, int columns, int row, int column, float limit) {
  bool any = false;
  for (int y = maximum(row - 1, 0); y < minimum(row + 2, rows); ++y)
    for (int x = maximum(column - 1, 0); x < minimum(column + 2, columns); ++x)
      any |= score[(size_t)y * columns + x] > limit || score[(size_t)y * columns + x] < -limit;
  return any;
}

}  // namespace background
