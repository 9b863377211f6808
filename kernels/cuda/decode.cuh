// SPDX-License-Identifier: BSD-3-Clause
// Stored bytes of FITS tiles to pixels: Rice codes, byte order, quantised floats, scaling, nulls (FITS 4.0, 4.4, 5.2, 10).
#pragma once
#include "encode.cuh"

namespace decode {

using encode::Dither;
using encode::product;
using encode::reversed;

constexpr int OUTSIDE = 1, SHORT = 2, TRAILING = 3, SELECTOR = 4;  // of FAULTS of kernels/decode.py
constexpr int SLACK = 16;                                          // unused bytes at the end taken for padding
constexpr long long EXACT_ZERO = -2147483646;
constexpr int MAX_AXES = 8;

// How the stored values of a tile lie in memory.
enum Layout { CODED = 0, BIG = 1, PLANES = 2, NATIVE = 3 };  // Rice; big-endian; byte planes, top one first; int32

// Types of pixels.
enum Type { U8 = 1, U16 = 2, U32 = 4, U64 = 8, F32 = 20, F64 = 24 };

// What all tiles share; as kernels/cuda/decode.py lays it out.
struct Form {
  double scale, zero;
  long long common;             // null value in every tile
  long long corner[MAX_AXES];   // of the window in the image
  long long shape[MAX_AXES];    // of the window
  int axes, type, stored;       // type of the pixels, bytes of a stored one
  int floating, single;         // stored are floats; step 4 computes in single precision
  int linear, flip, has_common, exact_zero;
  int block, width;             // Rice: pixels of a block, bits of an integer
  int mask_bit;
};

struct Tile {
  long long offset, length;  // bytes, in the heap or in what was unpacked on the host
  long long first;           // of `inside` tiles: place of the first pixel in the window
  long long blank;
  double scale, zero;
  int pixels, dither;  // as Tiles.dither
  int fault;           // found by the host
  unsigned char layout, width, has_blank, inside;  // width: bytes of a stored value; inside: one piece of the window
  unsigned char unpacked, unused[7];
};

// Origin of a tile in the image and its extent, slowest axis first.
struct Box {
  long long origin[MAX_AXES];
  int extent[MAX_AXES];
};

struct Counts {
  int nulls = 0, missing = 0, infinite = 0;
};

HD float product(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

HD double double_of(unsigned long long bits) {
#ifdef __CUDA_ARCH__
  return __longlong_as_double((long long)bits);
#else
  union {
    unsigned long long u;
    double d;
  } both;
  both.u = bits;
  return both.d;
#endif
}

HD float float_of(unsigned bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  union {
    unsigned u;
    float f;
  } both;
  both.u = bits;
  return both.f;
#endif
}

HD bool is_outside(const Tile& tile, long long size) {
  return tile.offset < 0 || tile.length < 0 || tile.offset > size || tile.length > size - tile.offset;
}

// ---- places

// Place in the window of pixel j of a tile; -1 outside.
HD long long place_of(const Form& form, const Tile& tile, const Box& box, int j) {
  if (tile.inside) return tile.first + j;
  int d = form.axes - 1;
  unsigned rest = (unsigned)j;
  long long flat = 0, stride = 1;
  for (; d >= 0; --d) {
    const unsigned extent = (unsigned)box.extent[d], along = d ? rest % extent : rest;
    const long long p = box.origin[d] + along - form.corner[d];
    if (p < 0 || p >= form.shape[d]) return -1;
    rest /= extent;
    flat += p * stride;
    stride *= form.shape[d];
  }
  return flat;
}

// ---- stored values to pixels

// Steps 5 and 6 of kernels/decode.py, for a pixel type of floats.
template <typename T>
HD void put_real(T v, const Form& form, long long at, void* out, int* mask, Counts& n) {
  if (mask && !is_finite(v)) {
    mask[at] |= form.mask_bit;
    ++n.missing;
    if (v == v) {
      ++n.infinite;
      v = (T)quiet_nan();
    }
  }
  ((T*)out)[at] = v;
}

HD void put(double v, const Form& form, long long at, void* out, int* mask, Counts& n) {
  if (form.type == F64)
    put_real(v, form, at, out, mask, n);
  else
    put_real((float)v, form, at, out, mask, n);
}

// Step 4; what single precision gives, double holds.
HD double scaled(double v, const Form& form) {
  if (form.single) return (double)(product((float)v, (float)form.scale) + (float)form.zero);
  return product(v, form.scale) + form.zero;
}

// A stored integer as a number: with its top bit inverted where the form says so.
HD double number_of(long long s, const Form& form) {
  if (form.stored == 8) {  // rounded once
    if (form.flip) {
      const unsigned long long u = (unsigned long long)s ^ 1ull << 63;
      return form.type == F64 ? (double)u : (double)(float)u;
    }
    return form.type == F64 ? (double)s : (double)(float)s;
  }
  if (form.flip) s += form.stored == 1 ? -128ll : 1ll << (8 * form.stored - 1);
  return (double)s;
}

// Step 3: the value of a quantised integer.
HD double restored(long long s, const Form& form, const Tile& tile, float number) {
  if (tile.dither < 0) return product((double)s, tile.scale) + tile.zero;
  if (form.exact_zero && s == EXACT_ZERO) return 0.0;
  return product((double)s - (double)number + 0.5, tile.scale) + tile.zero;
}

HD bool is_null(long long s, const Form& form, const Tile& tile) {
  return (tile.has_blank && s == tile.blank) || (form.has_common && s == form.common);
}

// Steps 2 to 6 for a stored integer; `number`: of the dither.
HD void put_integer(long long s, const Form& form, const Tile& tile, float number, long long at, void* out, int* mask,
                    Counts& n) {
  const bool quantised = tile.dither >= -1;
  if (!form.floating) s = form.stored == 1 ? s & 255 : form.stored == 2 ? (short)s : form.stored == 4 ? (int)s : s;
  const bool null = is_null(s, form, tile);
  n.nulls += null;
  if (form.type == F32 || form.type == F64) {
    double v = quiet_nan();
    if (!null) {
      v = quantised ? restored(s, form, tile, number) : form.linear ? (double)s : number_of(s, form);
      if (form.linear) v = scaled(v, form);
    }
    put(v, form, at, out, mask, n);
  } else if (form.type == U8) {
    ((unsigned char*)out)[at] = (unsigned char)(s ^ (form.flip ? 0x80 : 0));
  } else if (form.type == U16) {
    ((unsigned short*)out)[at] = (unsigned short)(s ^ (form.flip ? 0x8000 : 0));
  } else if (form.type == U32) {
    ((unsigned*)out)[at] = (unsigned)s ^ (form.flip ? 0x80000000u : 0u);
  } else {
    ((unsigned long long*)out)[at] = (unsigned long long)s ^ (form.flip ? 1ull << 63 : 0ull);
  }
}

// Pixel j of a tile that is not coded, from its bytes; sign-extended but for single bytes.
HD long long element(const unsigned char* bytes, const Tile& tile, int j) {
  const int width = tile.width;
  if (tile.layout == NATIVE) return ((const int*)bytes)[j];
  if (width == 1) return bytes[j];
  const unsigned char* p = bytes + (tile.layout == BIG ? (long long)j * width : j);
  unsigned long long v = 0;
  if (tile.layout == BIG && ((unsigned long long)p & 3u) == 0 && width >= 4) {
    v = reversed(((const unsigned*)p)[0]);
    if (width == 8) v = v << 32 | reversed(((const unsigned*)p)[1]);
  } else {
    const long long step = tile.layout == BIG ? 1 : tile.pixels;
    for (int b = 0; b < width; ++b) v = v << 8 | p[b * step];
  }
  return width == 2 ? (short)v : width == 4 ? (int)v : (long long)v;
}

// Whether the elements of a tile that is not coded are floats.
HD bool holds_floats(const Form& form, const Tile& tile) {
  return form.floating && tile.dither < -1 && tile.layout != NATIVE && tile.width >= 4;
}

HD void put_element(long long s, const Form& form, const Tile& tile, float number, long long at, void* out, int* mask,
                    Counts& n) {
  if (!holds_floats(form, tile)) return put_integer(s, form, tile, number, at, out, mask, n);
  if (tile.width == 4 && form.type == F32 && !form.linear)
    return put_real(float_of((unsigned)s), form, at, out, mask, n);
  const double v = tile.width == 8 ? double_of((unsigned long long)s) : (double)float_of((unsigned)s);
  put(form.linear ? scaled(v, form) : v, form, at, out, mask, n);
}

// Position in the dither table of any pixel of a tile.
HD int number_index(const float* table, int dither, long long j) {
  int entry = dither, at = Dither::start(table, entry);
  while (j >= encode::COUNT - at) {
    j -= encode::COUNT - at;
    entry = Dither::after(entry);
    at = Dither::start(table, entry);
  }
  return at + (int)j;
}

// ---- Rice

HD int leading_zeros(unsigned v) {  // of v > 0
#ifdef __CUDA_ARCH__
  return __clz((int)v);
#else
  return __builtin_clz(v);
#endif
}

// 32 bits of two words from bit `at` (of 0 to 31, what is above counts modulo 32).
HD unsigned from_bit(unsigned high, unsigned low, int at) {
#ifdef __CUDA_ARCH__
  return __funnelshift_l(low, high, (unsigned)at);
#else
  at &= 31;
  return at ? high << at | low >> (32 - at) : high;
#endif
}

// Bits of a stream, counted from the aligned word in which it begins. Words behind its end are 0 and are not read.
struct Stream {
  const unsigned* words;
  int whole;                  // words that end before `end`
  int limit;                  // bits before `end`
  int at;                     // the bit that is next
  unsigned high, low, ahead;  // the word that holds it and those behind
  unsigned rest;              // the word in which the stream ends

  HD Stream(const unsigned char* bytes, long long length) {
    const int shift = (int)((unsigned long long)bytes & 3u);
    words = (const unsigned*)(bytes - shift);
    whole = (int)((length + shift) >> 2);
    limit = (int)(8 * (length + shift));
    rest = 0;
    const unsigned char* p = (const unsigned char*)(words + whole);
    for (int b = 0; b < 4; ++b) rest = rest << 8 | (p + b < bytes + length ? p[b] : 0u);
    go(8 * shift);
  }
  HD unsigned word(int i) const {
#ifdef __CUDA_ARCH__
    if (i < whole) return reversed(__ldg(words + i));
#else
    if (i < whole) return reversed(words[i]);
#endif
    return i == whole ? rest : 0u;
  }
  HD void go(int to) {
    at = to;
    high = word(to >> 5);
    low = word((to >> 5) + 1);
    ahead = word((to >> 5) + 2);
  }
  // Move on; a word's length at most is quick.
  HD void move(int to) {
    const int step = (to >> 5) - (at >> 5);
    at = to;
    if (step == 1) {
      high = low;
      low = ahead;
      ahead = word((to >> 5) + 2);
    } else if (step) {
      go(to);
    }
  }
  HD unsigned peek() const { return from_bit(high, low, at); }
  // `count` (0 to 32) bits that end before bit `stop`.
  HD unsigned before(int stop, int count) const {
    const int from = stop - count;
    return count ? from_bit(word(from >> 5), word((from >> 5) + 1), from) >> (32 - count) : 0u;
  }
  // Past the next code of `tail` bits behind its unary part. Zeros to the end of the stream lead behind the end.
  HD void skip_code(int tail) {
    unsigned next = peek();
    if (next == 0) {
      while (next == 0 && at <= limit) {
        move((at | 31) + 1);
        next = high;
      }
      if (next == 0) return go(limit + 64 + tail);
    }
    move(at + leading_zeros(next) + 1 + tail);
  }
  HD bool is_over() const { return at > limit; }
  HD bool goes_on() const { return limit - at >= 8 * (SLACK + 1); }
};

HD int selector_bits(int width) { return width == 8 ? 3 : width == 16 ? 4 : 5; }
HD int verbatim(int width) { return width == 8 ? 6 : width == 16 ? 14 : 25; }

// A block of codes: split position, or -1 (nothing but equal pixels), or `verbatim`; above that the stream is damaged.
HD int take_selector(Stream& stream, int width) {
  const int bits = selector_bits(width), split = (int)(stream.peek() >> (32 - bits)) - 1;
  stream.move(stream.at + bits);
  return split;
}

// Mapped difference whose code lies between two bits.
HD unsigned code_value(const Stream& stream, int start, int stop, int split) {
  return (unsigned)(stop - split - 1 - start) << split | stream.before(stop, split);
}

HD unsigned unmapped(unsigned v) { return v >> 1 ^ (0u - (v & 1u)); }

// The integer that the coded bits stand for: bytes unsigned, others signed.
HD int as_stored(unsigned v, int width) { return width == 8 ? (int)(v & 255u) : width == 16 ? (short)v : (int)v; }

}  // namespace decode
