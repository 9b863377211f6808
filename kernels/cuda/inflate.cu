// SPDX-License-Identifier: BSD-3-Clause
// A warp inflates a stream: its lanes all follow the bits, which are the same for all, and share the bytes to be written.
#include "inflate.cuh"

using namespace inflate;

constexpr int WARPS = 4, LITERAL_BITS = 10, DISTANCE_BITS = 8;

struct Tables {
  Code<LITERALS, LITERAL_BITS> literal;
  Code<DISTANCES, DISTANCE_BITS> distance;
  unsigned char lengths[LITERALS + DISTANCES];
};

// Bytes of a stream as they come.
struct Output {
  unsigned char* to;
  int room, at = 0;
};

// A code from the lengths of its codes; false where zlib takes none.
template <int SYMBOLS, int BITS>
__device__ bool build(Code<SYMBOLS, BITS>& code, const unsigned char* lengths, int n, int lane, bool complete) {
  for (int i = lane; i < 1 << BITS; i += 32) code.quick[i] = 0;
  if (lane <= LONGEST_CODE) {
    int own = 0;
    KEEP_LOOP
    for (int i = 0; i < n; ++i) own += lengths[i] == lane;
    code.count[lane] = (unsigned short)own;
  }
  __syncwarp();
  int left = 1, longest = 0, used = 0, first = 0, own_first = 0, own_place = 0;
  KEEP_LOOP
  for (int k = 1; k <= LONGEST_CODE; ++k) {
    const int here = code.count[k];
    left = 2 * left - here;
    if (left < 0) return false;
    if (here) longest = k;
    if (k == lane) {
      own_first = first;
      own_place = used;
    }
    used += here;
    first = (first + here) << 1;
  }
  if (left > 0 && (complete || longest > 1)) return false;
  if (lane <= LONGEST_CODE) {
    code.first[lane] = (unsigned short)own_first;
    code.place[lane] = (unsigned short)own_place;
    if (lane) {
      KEEP_LOOP
      for (int i = 0; i < n; ++i)
        if (lengths[i] == lane) code.sorted[own_place++] = (unsigned short)i;
    }
  }
  __syncwarp();
  KEEP_LOOP
  for (int j = lane; j < used; j += 32) {
    const int symbol = code.sorted[j], bits = lengths[symbol];
    if (bits > BITS) continue;
    const unsigned begin = turned(code.first[bits] + (unsigned)(j - code.place[bits]), bits);
    for (unsigned i = begin; i < 1u << BITS; i += 1u << bits) code.quick[i] = (unsigned short)(symbol << 4 | bits);
  }
  __syncwarp();
  return true;
}

// Codes of a block with fixed ones.
__device__ bool fixed(Tables& tables, int lane) {
  __syncwarp();  // the block before it is done
  for (int i = lane; i < LITERALS + DISTANCES; i += 32)
    tables.lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : i < LITERALS ? 8 : 5;
  __syncwarp();
  return build(tables.literal, tables.lengths, LITERALS, lane, false) &&
         build(tables.distance, tables.lengths + LITERALS, DISTANCES, lane, false);
}

// Codes of a block that begins with them.
__device__ bool described(Bits& in, Tables& tables, int lane) {
  __syncwarp();  // the block before it is done
  in.fill();
  const int literals = 257 + in.take(5), distances = 1 + in.take(5), orders = 4 + in.take(4);
  if (literals > LAST_LENGTH + 1 || distances > LAST_DISTANCE + 1) return false;
  if (lane < ORDERS) tables.lengths[lane] = 0;
  __syncwarp();
  KEEP_LOOP
  for (int k = 0; k < orders; ++k) {
    in.fill();
    const int bits = in.take(3);
    if (lane == 0) tables.lengths[ordered(k)] = (unsigned char)bits;
  }
  __syncwarp();
  if (!build(tables.distance, tables.lengths, ORDERS, lane, true)) return false;
  int before = 0;
  KEEP_LOOP
  for (int at = 0; at < literals + distances;) {
    in.fill();
    const int symbol = tables.distance.symbol(in);
    if (symbol < 0 || (symbol == 16 && at == 0)) return false;
    int times = 1;
    if (symbol == 16) times = 3 + in.take(2);
    if (symbol == 17) times = 3 + in.take(3);
    if (symbol == 18) times = 11 + in.take(7);
    if (symbol != 16) before = symbol < 16 ? symbol : 0;
    if (at + times > literals + distances) return false;
    for (int i = lane; i < times; i += 32) tables.lengths[at + i] = (unsigned char)before;
    at += times;
  }
  __syncwarp();
  return tables.lengths[END] && build(tables.literal, tables.lengths, literals, lane, false) &&
         build(tables.distance, tables.lengths + literals, distances, lane, false);
}

__device__ bool stored(Bits& in, Output& out, int lane) {
  in.drop(in.held & 7);
  in.fill();
  const int n = in.take(16);
  if ((n ^ in.take(16)) != 0xffff) return false;
  const long long from = in.byte();
  if (from + n > in.end || n > out.room - out.at) return false;
  KEEP_LOOP
  for (int i = lane; i < n; i += 32) out.to[out.at + i] = in.data[from + i];
  out.at += n;
  in.seek(from + n);
  return true;
}

// A block's symbols: literals are kept until each lane has one; matches are copied by all lanes.
__device__ bool symbols(Bits& in, const Tables& tables, Output& out, int lane) {
  int kept = 0;
  unsigned char own = 0;
  while (true) {
    in.fill();
    const int symbol = tables.literal.symbol(in);
    if (symbol < 0) return false;
    if (symbol < END && lane == kept) own = (unsigned char)symbol;
    if (symbol < END && ++kept < 32) continue;
    if (kept > out.room - out.at) return false;
    if (lane < kept) out.to[out.at + lane] = own;
    out.at += kept;
    kept = 0;
    if (symbol < END) continue;
    if (symbol == END) return true;
    if (symbol > LAST_LENGTH) return false;
    const int length = match_length(symbol, in);
    in.fill();
    const int code = tables.distance.symbol(in);
    if (code < 0 || code > LAST_DISTANCE) return false;
    const int distance = match_distance(code, in);
    if (distance > out.at || length > out.room - out.at) return false;
    __syncwarp();  // what was written so far
    const unsigned char* from = out.to + out.at - distance;
    for (int i = lane; i < length; i += 32) out.to[out.at + i] = from[distance < length ? i % distance : i];
    out.at += length;
  }
}

// Stream t, bytes offset[t] on of `data`, gives size[t] bytes at place[t] of `out`, and status 0; or zeros, and status 1.
__global__ void __launch_bounds__(32 * WARPS)
    inflate_streams(const unsigned char* __restrict__ data, const long long* __restrict__ offset,
                    const long long* __restrict__ length, const long long* __restrict__ place,
                    const long long* __restrict__ size, int count, unsigned char* out, int* __restrict__ status) {
  __shared__ Tables shared[WARPS];
  const int lane = threadIdx.x & 31, t = blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (t >= count) return;
  Tables& tables = shared[threadIdx.x >> 5];
  Bits in(data, offset[t], offset[t] + length[t]);
  Output made{out + place[t], (int)size[t]};
  bool whole = true, last = false;
  while (whole && !last) {
    in.fill();
    last = in.take(1);
    const int kind = in.take(2);
    if (kind == 0)
      whole = stored(in, made, lane);
    else
      whole = kind < 3 && (kind == 1 ? fixed(tables, lane) : described(in, tables, lane)) &&
              symbols(in, tables, made, lane);
  }
  whole = whole && made.at == made.room && in.byte() == in.end;
  __syncwarp();
  if (!whole)
    for (int i = lane; i < made.room; i += 32) made.to[i] = 0;
  if (lane == 0) status[t] = !whole;
}
