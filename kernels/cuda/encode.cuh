// SPDX-License-Identifier: BSD-3-Clause
// Bytes that FITS stores: big-endian words, dithered steps, Rice codes (FITS 4.0, 3.3.2 and 10).
#pragma once
#include "common.cuh"

namespace encode {

HD unsigned reversed(unsigned w) {
#ifdef __CUDA_ARCH__
  return __byte_perm(w, 0, 0x0123);
#else
  return w >> 24 | (w >> 8 & 0xff00u) | (w & 0xff00u) << 8 | w << 24;
#endif
}

// Word i as stored, from native pixels of `size` bytes with their top bits flipped by `top`.
HD unsigned stored(const unsigned* words, long long i, int size, unsigned top) {
  if (size == 8) return i & 1 ? reversed(words[i - 1]) : reversed(words[i + 1] ^ top);
  const unsigned w = words[i] ^ top;
  if (size == 4) return reversed(w);
  return size == 2 ? (w & 0x00ff00ffu) << 8 | (w >> 8 & 0x00ff00ffu) : w;
}

// A tile of an image, its pixels numbered along its rows.
struct Box {
  int y0, x0, height, width;

  HD Box(long long t, int h, int w, int th, int tw, int nx) {
    y0 = (int)(t / nx) * th;
    x0 = (int)(t % nx) * tw;
    height = minimum(th, h - y0);
    width = minimum(tw, w - x0);
  }
  HD int count() const { return height * width; }
  HD int column(int j) const { return height == 1 ? j : j % width; }
  HD size_t pixel(int j, int w) const {
    if (width == w) return (size_t)y0 * w + j;  // whole rows: no division
    return (size_t)(y0 + j / width) * w + x0 + j % width;
  }
};

// ---- quantisation

constexpr int COUNT = 10000;  // numbers in the dither table
constexpr int DIGITS = 3, BINS = 2048;

// A product that no compiler may fuse with a sum: the same bits as on the host.
HD double product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

template <typename T>
HD bool usable(T v) { return is_finite(v) && v != (T)0; }

// Bits of |2 x_i - x_(i-2) - x_(i+2)| in single precision; they order as the distances do. 2 b is exact.
template <typename T>
HD unsigned distance_key(T a, T b, T c) {
  const double d = 2.0 * (double)b - (double)a - (double)c;
  union {
    float f;
    unsigned u;
  } bits;
  bits.f = (float)(d < 0 ? -d : d);
  return bits.u;
}

HD int digit_shift(int pass) { return pass == 0 ? 20 : pass == 1 ? 10 : 0; }
HD int digit_bits(int pass) { return pass == 0 ? 11 : 10; }

// Whether a key has the digits found in the passes before this one.
HD bool agrees(unsigned key, unsigned prefix, int pass) {
  return pass == 0 || key >> (digit_shift(pass) + digit_bits(pass)) == prefix;
}
HD unsigned digit(unsigned key, int pass) { return key >> digit_shift(pass) & ((1u << digit_bits(pass)) - 1u); }

// Position in the dither table, which runs on to the entry's next start at its end.
struct Dither {
  int entry, at;

  HD static int start(const float* table, int entry) { return (int)(table[entry] * 500.0f); }
  HD static int after(int entry) { return entry + 1 == COUNT ? 0 : entry + 1; }

  HD void begin(const float* table, long long row, int seed) {
    entry = (int)((row + seed - 1) % COUNT);
    at = start(table, entry);
  }
  // Index of the number `ahead` (fewer than 9500) pixels further on.
  HD int index(const float* table, int ahead) const {
    const int i = at + ahead;
    return i < COUNT ? i : start(table, after(entry)) + i - COUNT;
  }
  HD void advance(const float* table, int by) {
    const int i = at + by;
    at = index(table, by);
    if (i >= COUNT) entry = after(entry);
  }
};

// Whether a tile can be told by integers: some noise, in single precision, and a range of fewer than `levels` steps.
HD bool quantisable(double step, double low, double high, double levels) {
  return step > 0.0 && is_finite(step) && high - low < product(levels, step);
}

// Steps above the smallest value, `low`, which is `base`; `rate` is one over the step.
HD int step_of(double v, double low, double rate, double number, int base) {
  const double steps = product(v - low, rate) + number;  // not negative: the cast rounds down
  return (int)((long long)steps + base);
}

// ---- Rice

template <typename T>
struct Coder;  // selector: bits of a block's selector; verbatim: the split position that stands for plain differences
template <>
struct Coder<unsigned char> {
  static constexpr int width = 8, selector = 3, verbatim = 6;
};
template <>
struct Coder<unsigned short> {
  static constexpr int width = 16, selector = 4, verbatim = 14;
};
template <>
struct Coder<unsigned int> {
  static constexpr int width = 32, selector = 5, verbatim = 25;
};

// Difference in the pixel's own type, folded to be not negative: 0, -1, 1, -2, ... become 0, 1, 2, 3, ...
template <typename T>
HD unsigned mapped(T pixel, T before) {
  const T d = (T)(pixel - before);
  const T sign = (T)(0u - (unsigned)(d >> (Coder<T>::width - 1)));
  return (T)((T)(d << 1) ^ sign);
}

// floor(log2(mean)), 0 at least. A mean of n numbers of 32 bits has 32 bits.
HD int split_of(unsigned long long sum, int n) {
  const unsigned mean = n == 32 ? (unsigned)(sum >> 5) : (unsigned)(sum / (unsigned)n);
#ifdef __CUDA_ARCH__
  return 31 - __clz((int)(mean | 1u));
#else
  return 31 - __builtin_clz(mean | 1u);
#endif
}

// Selector of a block of n: 0 nothing but zeros, split + 1, or verbatim + 1. high: sum of v >> split.
template <typename T>
HD int selector_of(unsigned long long sum, unsigned long long high, int split, int n) {
  if (sum == 0) return 0;
  if (split >= Coder<T>::verbatim || high + (unsigned)(n * (split + 1)) >= (unsigned)(n * Coder<T>::width))
    return Coder<T>::verbatim + 1;
  return split + 1;
}

// Bits of a coded block with its selector.
template <typename T>
HD int block_bits(int selector, unsigned long long high, int n) {
  if (selector == 0) return Coder<T>::selector;
  if (selector == Coder<T>::verbatim + 1) return Coder<T>::selector + n * Coder<T>::width;
  return Coder<T>::selector + (int)high + n * selector;
}

// One pixel's code: `zeros` 0 bits, then `width` bits of `value`.
struct Code {
  unsigned value;
  int zeros, width;
};

template <typename T>
HD Code code_of(unsigned v, int selector) {
  if (selector == 0) return {0u, 0, 0};
  if (selector == Coder<T>::verbatim + 1) return {v, 0, Coder<T>::width};
  const int split = selector - 1;
  return {1u << split | (v & ((1u << split) - 1u)), (int)(v >> split), selector};
}

// `width` (1 to 32) bits at bit position `at` of words that are filled from their top bit, by or_word(index, bits).
template <typename Or>
HD void place(Or or_word, int at, unsigned value, int width) {
  const unsigned long long bits = (unsigned long long)value << (64 - width - (at & 31));
  or_word(at >> 5, (unsigned)(bits >> 32));
  if ((unsigned)bits) or_word((at >> 5) + 1, (unsigned)bits);
}

}  // namespace encode
