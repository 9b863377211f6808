// SPDX-License-Identifier: BSD-3-Clause
// Order statistics of float32 by their bits.
#pragma once
#include "common.cuh"

namespace background {

constexpr int BINS = 256, DIGITS = 4;  // radix of the selection: 4 passes of 8 bits

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

// The digit of a key that pass `pass` sorts by, most significant first.
HD int digit(unsigned key, int pass) { return (key >> (8 * (DIGITS - 1 - pass))) & (BINS - 1); }

// Whether a key agrees with the digits found in the passes before this one.
HD bool agrees(unsigned key, unsigned prefix, int pass) {
  return pass == 0 || (key >> (8 * (DIGITS - pass))) == prefix;
}

// First pixel of cell i when n pixels are split into `cells` of nearly equal size.
HD int edge(int i, int n, int cells) { return (int)((long long)n * i / cells); }

}  // namespace background
