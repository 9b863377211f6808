// SPDX-License-Identifier: BSD-3-Clause
// Deflate streams (RFC 1951): bits, symbols, and what lengths and distances they stand for.
#pragma once
#include "common.cuh"

namespace inflate {

constexpr int LONGEST_CODE = 15;
constexpr int LITERALS = 288, DISTANCES = 32, ORDERS = 19;  // symbols of the alphabets
constexpr int END = 256;                                    // symbol at the end of a block
constexpr int LAST_LENGTH = 285, LAST_DISTANCE = 29;        // symbols behind these mean nothing

// The bits of a stream, lowest first; zeros behind its end.
struct Bits {
  const unsigned char* data;  // at a multiple of 4, up to 3 bytes before what was given
  long long word, end;        // words taken; the byte behind the stream
  unsigned long long buffer = 0;
  int held = 0;

  HD Bits(const unsigned char* given, long long begin, long long behind) {
    const int skew = (int)(reinterpret_cast<size_t>(given) & 3);
    data = given - skew;
    end = behind + skew;
    seek(begin + skew);
  }

  HD unsigned load(long long w) const {
    const long long at = 4 * w;
    if (at + 4 <= end) return reinterpret_cast<const unsigned*>(data)[w];
    unsigned v = 0;
    for (int k = 0; k < 4; ++k)
      if (at + k < end) v |= (unsigned)data[at + k] << 8 * k;
    return v;
  }

  // More than 32 bits are held then.
  HD void fill() {
    if (held > 32) return;
    buffer |= (unsigned long long)load(word++) << held;
    held += 32;
  }

  HD void drop(int n) {
    buffer >>= n;
    held -= n;
  }

  HD int take(int n) {
    const int v = (int)((unsigned)buffer & ((1u << n) - 1u));
    drop(n);
    return v;
  }

  // The byte that the next bit is in, or the one behind what was taken.
  HD long long byte() const { return (32 * word - held + 7) >> 3; }

  HD void seek(long long byte) {
    word = byte >> 2;
    buffer = 0;
    held = 0;
    fill();
    drop(8 * (int)(byte & 3));
  }
};

// A prefix code whose codes of a length follow each other.
template <int SYMBOLS, int BITS>
struct Code {
  unsigned short quick[1 << BITS];  // by the next BITS bits: symbol << 4 | bits of its code; 0: longer, or none
  unsigned short sorted[SYMBOLS];   // symbols by length and value of their codes
  unsigned short count[LONGEST_CODE + 1], first[LONGEST_CODE + 1], place[LONGEST_CODE + 1];  // of each length

  // The next symbol, -1 where the bits are none. At least LONGEST_CODE bits must be held.
  HD int symbol(Bits& in) const {
    const unsigned entry = quick[in.buffer & ((1u << BITS) - 1u)];
    if (entry) {
      in.drop(entry & 15u);
      return entry >> 4;
    }
    int code = 0;
    KEEP_LOOP
    for (int k = 1; k <= LONGEST_CODE; ++k) {
      code = code << 1 | (int)(in.buffer >> (k - 1) & 1u);
      const int j = code - first[k];
      if (j < 0 || j >= count[k]) continue;
      in.drop(k);
      return sorted[place[k] + j];
    }
    return -1;
  }
};

// The lowest `bits` bits (at most 16) in the other order.
HD unsigned turned(unsigned v, int bits) {
  v = (v & 0x5555u) << 1 | (v >> 1 & 0x5555u);
  v = (v & 0x3333u) << 2 | (v >> 2 & 0x3333u);
  v = (v & 0x0f0fu) << 4 | (v >> 4 & 0x0f0fu);
  v = (v & 0x00ffu) << 8 | (v >> 8 & 0x00ffu);
  return v >> (16 - bits);
}

// Where the k-th length of a code of code lengths belongs: 16, 17, 18, 0, 8, 7, 9, 6, 10, 5, ..., 1, 15.
HD int ordered(int k) {
  if (k < 4) return k < 3 ? 16 + k : 0;
  return k & 1 ? 8 - (k - 3) / 2 : 8 + (k - 4) / 2;
}

// Bytes of a match, from its symbol (257 to 285) and the bits behind it.
HD int match_length(int symbol, Bits& in) {
  const int k = symbol - END - 1;
  if (k < 4) return 3 + k;
  if (k == 28) return 258;
  const int more = (k - 4) >> 2;
  return 3 + ((4 + (k & 3)) << more) + in.take(more);
}

// How far back a match begins, from its symbol (0 to 29) and the bits behind it.
HD int match_distance(int symbol, Bits& in) {
  if (symbol < 4) return 1 + symbol;
  const int more = (symbol >> 1) - 1;
  return 1 + ((2 + (symbol & 1)) << more) + in.take(more);
}

}  // namespace inflate
