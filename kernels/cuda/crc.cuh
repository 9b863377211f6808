// SPDX-License-Identifier: BSD-3-Clause
// CRC-32 of the words of a stretch of bytes, taken by many threads: polynomials over GF(2) modulo that of RFC 1952, 8.
#pragma once
#include "common.cuh"

namespace crc {

constexpr unsigned POLYNOMIAL = 0xedb88320u;  // bit 31 is x^0
constexpr int THREADS = 128;                  // that take the words of a stretch in turn
constexpr int STRETCH = 1 << 15;              // bytes, at most

// What kernels/cuda/crc.py lays out.
constexpr int STEPS = 0;                               // [4][256]: x^(32 THREADS) times a byte of the register
constexpr int SHIFTS = STEPS + 4 * 256;                // [4 THREADS + 1]: x^(8 e)
constexpr int POWERS = SHIFTS + 4 * THREADS + 1;       // [32]: x^(8 2^k)

HD unsigned product(unsigned a, unsigned b) {
  unsigned sum = 0;
  KEEP_LOOP
  for (int i = 31; i >= 0; --i) {
    sum ^= b & (0u - (a >> i & 1u));
    b = b >> 1 ^ (POLYNOMIAL & (0u - (b & 1u)));
  }
  return sum;
}

// v times x^(8 n).
HD unsigned past(unsigned v, unsigned long long n, const unsigned* powers) {
  KEEP_LOOP
  for (int k = 0; n && k < 32; ++k, n >>= 1)
    if (n & 1) v = product(powers[k], v);
  return v;
}

// v times x^(32 THREADS).
HD unsigned stepped(unsigned v, const unsigned* steps) {
  return steps[v & 255u] ^ steps[256 + (v >> 8 & 255u)] ^ steps[512 + (v >> 16 & 255u)] ^ steps[768 + (v >> 24)];
}

// What thread `own` adds to the checksum of `size` bytes (at most STRETCH) from a multiple of 4: its words as if the
// others were 0. `first` is added to the first of all words, of which there must be a whole one.
HD unsigned share(const unsigned char* bytes, int size, int own, unsigned first, const unsigned* steps,
                  const unsigned* shifts) {
  const unsigned* words = (const unsigned*)bytes;
  const int whole = size >> 2;
  unsigned sum = 0;
  int j = own, last = -1;
  if (j == 0 && whole) {
    sum = words[0] ^ first;
    last = 0;
    j = THREADS;
  }
#ifdef __CUDACC__
#pragma unroll 4
#endif
  for (; j < whole; j += THREADS) {
    sum = stepped(sum, steps) ^ words[j];
    last = j;
  }
  if (j == whole && (size & 3)) {  // bytes behind the end count as 0
    unsigned rest = 0;
    for (int b = 0; b < (size & 3); ++b) rest |= (unsigned)bytes[4 * whole + b] << (8 * b);
    sum = stepped(sum, steps) ^ rest;
    last = j;
  }
  return last < 0 ? 0u : product(shifts[size - 4 * last], sum);
}

}  // namespace crc
