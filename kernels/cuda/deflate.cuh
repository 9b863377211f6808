// SPDX-License-Identifier: BSD-3-Clause
// Deflate blocks (RFC 1951): symbols of lengths and distances, prefix codes of limited length, how codes are told.
#pragma once
#include "inflate.cuh"

namespace deflate {

using inflate::END;
using inflate::LONGEST_CODE;
using inflate::ordered;
using inflate::ORDERS;
using inflate::turned;

constexpr int CHUNK = 1 << 14;  // bytes that share a code, at most
constexpr int LEAST = 6;        // shortest repeat that is told as one
constexpr int LONGEST = 258, SHORTEST = 3;
constexpr int STORED = 42;                   // bits, at most, of a stored block beside its bytes
constexpr int SYMBOLS = 286;                 // literals, end, lengths
constexpr int LONGEST_ORDER = 7;             // bits of a code of the lengths of codes
constexpr int TOLD = SYMBOLS + 6;            // lengths of codes that a block may tell
constexpr int HEADER_WORDS = 72;             // 17 + 3 ORDERS + 7 TOLD bits: no run takes more than its lengths would
constexpr int HEAD = 10, TAIL = 8;           // bytes of a gzip member around its blocks
static_assert(32 * HEADER_WORDS >= 17 + 3 * ORDERS + LONGEST_ORDER * TOLD, "a header must fit");

// A symbol and the bits behind it.
struct Symbol {
  int symbol, more, rest;
};

HD int top_bit(int v) {
  int k = 0;
  KEEP_LOOP
  while (v > 1) {
    v >>= 1;
    ++k;
  }
  return k;
}

HD Symbol length_symbol(int n) {
  const int v = n - SHORTEST;
  if (n == LONGEST) return {SYMBOLS - 1, 0, 0};
  if (v < 8) return {END + 1 + v, 0, 0};
  const int more = top_bit(v) - 2;
  return {END + 1 + 4 * (more + 1) + (v >> more & 3), more, v & ((1 << more) - 1)};
}

HD Symbol distance_symbol(int n) {
  const int v = n - 1;
  if (v < 4) return {v, 0, 0};
  const int more = top_bit(v) - 1;
  return {2 * (more + 1) + (v >> more & 1), more, v & ((1 << more) - 1)};
}

// Appends `width` (at most 32) bits, lowest first, to words that are 0 behind `at`.
HD void append(unsigned* words, int& at, unsigned value, int width) {
  const unsigned long long bits = (unsigned long long)value << (at & 31);
  words[at >> 5] |= (unsigned)bits;
  if ((unsigned)(bits >> 32)) words[(at >> 5) + 1] |= (unsigned)(bits >> 32);
  at += width;
}

// What a code is made in.
struct Queues {
  unsigned short order[SYMBOLS];   // symbols that occur, by count and then by number
  unsigned short weight[SYMBOLS];  // of inner nodes; no more than CHUNK + 1 in all
  unsigned short parent[SYMBOLS];  // then depth
  unsigned char leaves[SYMBOLS];   // children of an inner node that are symbols
  int number[LONGEST_CODE + 1];    // codes of each length
};

// Lengths of the codes of the n symbols in q.order: Huffman's by two queues, ties to the leaf; where one is longer than
// `limit`, leaves move down until the code is complete. Other symbols' lengths stay.
template <typename Count>
HD void code_lengths(Queues& q, const Count* counts, int n, int limit, unsigned char* lengths) {
  if (n < 2) {
    if (n) lengths[q.order[0]] = 1;
    return;
  }
  int leaf = 0, node = 0;
  KEEP_LOOP
  for (int k = 0; k < n - 1; ++k) {
    int sum = 0, leaves = 0;
    KEEP_LOOP
    for (int child = 0; child < 2; ++child) {
      if (leaf < n && (node == k || (int)counts[q.order[leaf]] <= q.weight[node])) {
        sum += (int)counts[q.order[leaf++]];
        ++leaves;
      } else {
        sum += q.weight[node];
        q.parent[node++] = (unsigned short)k;
      }
    }
    q.weight[k] = (unsigned short)sum;
    q.leaves[k] = (unsigned char)leaves;
  }
  KEEP_LOOP
  for (int k = 0; k <= limit; ++k) q.number[k] = 0;
  KEEP_LOOP
  for (int k = n - 2; k >= 0; --k) {  // a parent's depth is known before its children's
    const int depth = k == n - 2 ? 0 : q.parent[q.parent[k]] + 1;
    q.parent[k] = (unsigned short)depth;
    q.number[minimum(depth + 1, limit)] += q.leaves[k];
  }
  int total = 0;
  KEEP_LOOP
  for (int k = 1; k <= limit; ++k) total += q.number[k] << (limit - k);
  KEEP_LOOP
  for (; total > 1 << limit; --total) {
    int k = limit - 1;
    KEEP_LOOP
    while (q.number[k] == 0) --k;
    --q.number[limit];
    --q.number[k];
    q.number[k + 1] += 2;
  }
  int i = 0;
  KEEP_LOOP
  for (int k = limit; k; --k) {
    KEEP_LOOP
    for (int j = q.number[k]; j; --j) lengths[q.order[i++]] = (unsigned char)k;
  }
}

// First code of each length, and then of each next one of that length (RFC 1951, 3.2.2); `next` has LONGEST_CODE + 1.
HD void first_codes(const unsigned char* lengths, int n, int* next) {
  KEEP_LOOP
  for (int k = 0; k <= LONGEST_CODE; ++k) next[k] = 0;
  KEEP_LOOP
  for (int s = 0; s < n; ++s) ++next[lengths[s]];
  int code = 0, before = 0;
  next[0] = 0;
  KEEP_LOOP
  for (int k = 1; k <= LONGEST_CODE; ++k) {
    const int here = next[k];
    code = (code + before) << 1;
    next[k] = code;
    before = here;
  }
}

// Lengths of codes as symbols and what follows them, by token(symbol, extra bits, what they say) (RFC 1951, 3.2.7).
template <typename Length, typename Token>
HD void runs(const Length& length, int n, const Token& token) {
  int i = 0;
  KEEP_LOOP
  while (i < n) {
    const int v = length(i);
    int left = 1;
    KEEP_LOOP
    while (i + left < n && length(i + left) == v) ++left;
    i += left;
    if (v) {
      token(v, 0, 0);
      --left;
    }
    const int most = v ? 6 : 138, least = v ? 3 : 11;
    KEEP_LOOP
    while (left >= least) {
      const int step = minimum(left, most);
      token(v ? 16 : 18, v ? 2 : 7, step - least);
      left -= step;
    }
    if (!v && left >= 3) {
      token(17, 3, left - 3);
      left = 0;
    }
    KEEP_LOOP
    for (; left; --left) token(v, 0, 0);
  }
}

// The start of a block with a code of its own: 3 bits, the codes. `lengths` of the literals, `far` the symbol of the one
// distance; `words` are 0 before. Returns its bits.
HD int header(const unsigned char* lengths, int far, bool last, Queues& q, unsigned char* orders, unsigned* words) {
  int literals = SYMBOLS;
  KEEP_LOOP
  while (!lengths[literals - 1]) --literals;
  const int n = literals + far + 1;
  const auto length = [=](int i) { return i < literals ? (int)lengths[i] : (int)(i == n - 1); };
  int counts[ORDERS];
  KEEP_LOOP
  for (int s = 0; s < ORDERS; ++s) {
    counts[s] = 0;
    orders[s] = 0;
  }
  runs(length, n, [&](int s, int, int) { ++counts[s]; });
  int used = 0;
  KEEP_LOOP
  for (int s = 0; s < ORDERS; ++s) {
    if (!counts[s]) continue;
    int at = used++;
    KEEP_LOOP
    for (; at && counts[q.order[at - 1]] > counts[s]; --at) q.order[at] = q.order[at - 1];
    q.order[at] = (unsigned short)s;
  }
  code_lengths(q, counts, used, LONGEST_ORDER, orders);
  int shown = ORDERS, at = 0;
  KEEP_LOOP
  while (!orders[ordered(shown - 1)]) --shown;
  append(words, at, 4u | (unsigned)last, 3);
  append(words, at, (unsigned)((literals - END - 1) | far << 5 | (shown - 4) << 10), 14);
  KEEP_LOOP
  for (int i = 0; i < shown; ++i) append(words, at, orders[ordered(i)], 3);
  first_codes(orders, ORDERS, q.number);
  KEEP_LOOP
  for (int s = 0; s < ORDERS; ++s)  // the codes take the counts' place
    if (orders[s]) counts[s] = (int)turned((unsigned)q.number[orders[s]]++, orders[s]);
  runs(length, n, [&](int s, int more, int rest) {
    append(words, at, (unsigned)(counts[s] | rest << orders[s]), orders[s] + more);
  });
  return at;
}

// What a byte says: where `again`, it repeats the one `distance` before, as the `run` - 1 bytes before it do.
struct Role {
  int literals, match;  // bytes told as they are up to this one; length of the repeat that ends with it
};

HD Role role(bool again, bool next, int run) {
  if (!again) return {1, 0};
  const int n = (run - 1) % LONGEST + 1;
  if (next && n < LONGEST) return {0, 0};
  return n < LEAST ? Role{n, 0} : Role{0, n};
}

// A chunk of a tile's bytes.
struct Chunk {
  long long tile, begin;  // its first byte, of the tile's
  int size, distance;     // size 0: the tile has fewer chunks
  bool first, last;

  // Chunk c of `pieces` of `piece` bytes in a tile, `per` chunks for a piece of a whole tile.
  HD Chunk(long long t, long long c, int per, int pieces, long long piece, int far) {
    tile = t;
    const long long k = c % per, number = c / per;
    const long long here = piece - k * CHUNK;
    begin = number * piece + k * CHUNK;
    size = here <= 0 ? 0 : (int)minimum(here, (long long)CHUNK);
    distance = far;
    first = c == 0;
    last = number == pieces - 1 && here <= CHUNK && here > 0;
  }
};

// Bit behind a block that begins at bit `at`; `bits` of one with a code, 0 of a stored one with n bytes.
HD long long behind(long long at, int bits, int n) {
  return bits ? at + bits : (at + 3 + 7) / 8 * 8 + 32 + 8LL * n;
}

}  // namespace deflate
