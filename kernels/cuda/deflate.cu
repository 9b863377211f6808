// SPDX-License-Identifier: BSD-3-Clause
// Tiles as gzip members: a warp makes the code of a chunk of bytes, and one writes it where the chunks before it end.
#include "deflate.cuh"
#include "encode.cuh"

using namespace deflate;

namespace {

constexpr int THREADS = 256, WARPS = 4;
constexpr unsigned ALL = 0xffffffffu;

// Where the chunks of an image are.
struct Grid {
  int h, w, th, tw, nx, size, pieces, per, distance;
  long long stride;  // bytes of a tile's place

  __device__ long long chunks() const { return (long long)pieces * per; }
  __device__ Chunk chunk(long long number) const {
    const long long t = number / chunks();
    const encode::Box box(t, h, w, th, tw, nx);
    return Chunk(t, number % chunks(), per, pieces, (long long)box.count() * size / pieces, distance);
  }
};

__device__ __forceinline__ int warp_sum(int v) {
  for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(ALL, v, d);
  return v;
}

// Sum of the lanes before this one.
__device__ __forceinline__ int warp_before(int v) {
  int sum = v;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(ALL, sum, d);
    if ((threadIdx.x & 31) >= d) sum += other;
  }
  return sum - v;
}

// The bytes of a chunk, 32 at a time: what those of the lanes say.
struct Reader {
  const unsigned char* data;
  int n, distance, carry = 0;

  __device__ Role at(int base) {
    const int lane = threadIdx.x & 31, i = base + lane;
    const bool again = i < n && i >= distance && data[i] == data[i - distance];
    const unsigned mask = __ballot_sync(ALL, again);
    const unsigned others = ~mask & (ALL >> (31 - lane));
    const int run = others ? lane - (31 - __clz(others)) : lane + 1 + carry;
    carry = __shfl_sync(ALL, run, 31);
    bool next = lane < 31 ? mask >> (lane + 1) & 1u : false;
    if (lane == 31 && again) next = i + 1 < n && data[i + 1] == data[i + 1 - distance];
    return i < n ? role(again, next, run) : Role{0, 0};
  }
};

// Joins a byte to words that others write too.
__device__ __forceinline__ void or_byte(unsigned* out, long long at, unsigned byte) {
  atomicOr(&out[at >> 2], byte << 8 * (int)(at & 3));
}

}  // namespace

// Big-endian bytes of every tile, or its byte planes, in a place of `stride` bytes.
template <typename T>
__global__ void __launch_bounds__(THREADS)
    tile_bytes(const T* __restrict__ pixels, int h, int w, int th, int tw, int nx, long long all, long long most,
               long long stride, const bool* __restrict__ use, bool shuffle, unsigned char* __restrict__ out) {
  const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (i >= all) return;
  const long long t = i / most;
  const int j = (int)(i - t * most);
  const encode::Box box(t, h, w, th, tw, nx);
  if (!use[t] || j >= box.count()) return;
  const T v = pixels[box.pixel(j, w)];
  unsigned char* to = out + t * stride;
  constexpr int SIZE = sizeof(T);
  UNROLL
  for (int b = 0; b < SIZE; ++b) {
    const unsigned char byte = (unsigned char)(v >> 8 * (SIZE - 1 - b));
    to[shuffle ? (long long)b * box.count() + j : (long long)j * SIZE + b] = byte;
  }
}

// The code of every chunk: its lengths, the start of its block, and the bits of that and of the whole block; 0 where the
// bytes are stored.
__global__ void __launch_bounds__(32 * WARPS)
    deflate_code(const unsigned char* __restrict__ bytes, int h, int w, int th, int tw, int nx, int size, int pieces,
                 int per, int distance, long long stride, long long all, const bool* __restrict__ use,
                 unsigned char* __restrict__ tables, unsigned* __restrict__ headers, int* __restrict__ header_bits,
                 int* __restrict__ bits) {
  __shared__ Queues queues[WARPS];
  __shared__ unsigned counted[WARPS][SYMBOLS];
  __shared__ unsigned started[WARPS][HEADER_WORDS];
  __shared__ unsigned char coded[WARPS][SYMBOLS], orders[WARPS][ORDERS];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const long long number = (long long)blockIdx.x * WARPS + warp;
  if (number >= all) return;
  const Grid grid{h, w, th, tw, nx, size, pieces, per, distance, stride};
  const Chunk chunk = grid.chunk(number);
  if (!use[chunk.tile] || !chunk.size) return;
  unsigned *counts = counted[warp], *words = started[warp];
  unsigned char* lengths = coded[warp];
  Queues& q = queues[warp];
  for (int s = lane; s < SYMBOLS; s += 32) {
    counts[s] = s == END;
    lengths[s] = 0;
  }
  for (int i = lane; i < HEADER_WORDS; i += 32) words[i] = 0;
  __syncwarp();
  Reader in{bytes + chunk.tile * stride + chunk.begin, chunk.size, distance};
  const Symbol far = distance_symbol(distance);
  int sum = 0;
  KEEP_LOOP
  for (int base = 0; base < chunk.size; base += 32) {
    const Role here = in.at(base);
    KEEP_LOOP
    for (int k = 0; k < here.literals; ++k) atomicAdd(&counts[in.data[base + lane - k]], 1u);
    if (here.match) {
      const Symbol s = length_symbol(here.match);
      atomicAdd(&counts[s.symbol], 1u);
      sum += s.more + 1 + far.more;
    }
  }
  __syncwarp();
  // place of a symbol: how many come before it, by count and then by number
  int used = 0;
  KEEP_LOOP
  for (int s = lane; s < SYMBOLS; s += 32) {
    const unsigned own = counts[s];
    if (!own) continue;
    int place = 0;
    for (int other = 0; other < SYMBOLS; ++other) {
      const unsigned c = counts[other];
      place += c && (c < own || (c == own && other < s));
    }
    q.order[place] = (unsigned short)s;
    ++used;
  }
  used = warp_sum(used);
  __syncwarp();
  if (lane == 0) code_lengths(q, counts, used, LONGEST_CODE, lengths);
  __syncwarp();
  for (int s = lane; s < SYMBOLS; s += 32) sum += (int)counts[s] * lengths[s];
  sum = warp_sum(sum);
  int start = 0;
  if (lane == 0) start = header(lengths, far.symbol, chunk.last, q, orders[warp], words);
  start = __shfl_sync(ALL, start, 0);
  __syncwarp();
  const bool own = start + sum < 8 * chunk.size + STORED;
  if (lane == 0) {
    header_bits[number] = own ? start : 0;
    bits[number] = own ? start + sum : 0;
  }
  if (!own) return;
  for (int s = lane; s < SYMBOLS; s += 32) tables[number * SYMBOLS + s] = lengths[s];
  for (int i = lane; i < (start + 31) >> 5; i += 32) headers[number * HEADER_WORDS + i] = words[i];
}

// First bit of every chunk in its tile's member, and the bytes of that.
__global__ void __launch_bounds__(THREADS)
    deflate_places(int h, int w, int th, int tw, int nx, int size, int pieces, int per, int distance, long long stride,
                   long long tiles, const bool* __restrict__ use, const int* __restrict__ bits,
                   long long* __restrict__ places, long long* __restrict__ sizes) {
  const long long t = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (t >= tiles) return;
  long long at = 8 * HEAD;
  const Grid grid{h, w, th, tw, nx, size, pieces, per, distance, stride};
  const long long chunks = grid.chunks();
  KEEP_LOOP
  for (long long c = 0; use[t] && c < chunks; ++c) {
    const long long number = t * chunks + c;
    places[number] = at;
    const Chunk chunk = grid.chunk(number);
    if (chunk.size) at = behind(at, bits[number], chunk.size);
  }
  sizes[t] = use[t] ? (at + 7) / 8 + TAIL : 0;
}

// Every chunk into its place, and what a member has around its chunks. `out` is 0 before: words that chunks share are
// joined by an atomic or of different bits.
__global__ void __launch_bounds__(32 * WARPS)
    deflate_emit(const unsigned char* __restrict__ bytes, int h, int w, int th, int tw, int nx, int size, int pieces,
                 int per, int distance, long long stride, long long all, const bool* __restrict__ use,
                 const unsigned char* __restrict__ tables, const unsigned* __restrict__ headers,
                 const int* __restrict__ header_bits, const long long* __restrict__ places,
                 const long long* __restrict__ offsets, const long long* __restrict__ sizes,
                 const unsigned* __restrict__ checks, unsigned* __restrict__ out) {
  constexpr int STAGE = HEADER_WORDS + 32;  // bits of a header, or of 32 roles: LEAST - 1 literals of the longest code
  static_assert(32 * (STAGE - 2) >= 32 * (LEAST - 1) * LONGEST_CODE, "what 32 bytes say must fit");
  __shared__ unsigned staged[WARPS][STAGE];
  __shared__ unsigned codes[WARPS][SYMBOLS];  // of a symbol: code << 4 | its bits
  __shared__ int nexts[WARPS][LONGEST_CODE + 1];
  __shared__ unsigned char coded[WARPS][SYMBOLS];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const long long number = (long long)blockIdx.x * WARPS + warp;
  if (number >= all) return;
  const Grid grid{h, w, th, tw, nx, size, pieces, per, distance, stride};
  const Chunk chunk = grid.chunk(number);
  const long long t = chunk.tile;
  if (!use[t] || !chunk.size) return;
  const unsigned char* data = bytes + t * stride + chunk.begin;
  if (chunk.first && lane < 4) {  // deflate, no name, no time, no system
    const int at = lane == 3 ? 9 : lane;
    or_byte(out, offsets[t] + at, lane == 0 ? 0x1fu : lane == 1 ? 0x8bu : lane == 2 ? 8u : 255u);
  }
  if (chunk.last && lane < TAIL) {
    const unsigned word = lane < 4 ? checks[t] : (unsigned)(chunk.begin + chunk.size);
    or_byte(out, offsets[t] + sizes[t] - TAIL + lane, word >> 8 * (lane & 3) & 255u);
  }
  const long long position = 8 * offsets[t] + places[number];
  const int start = header_bits[number];
  if (!start) {
    if (lane == 0 && chunk.last) atomicOr(&out[position >> 5], 1u << (position & 31));
    const long long at = (position + 3 + 7) >> 3, begin = at + 4, end = begin + chunk.size;
    if (lane < 4) or_byte(out, at + lane, ((unsigned)chunk.size ^ (lane < 2 ? 0u : 0xffffu)) >> 8 * (lane & 1) & 255u);
    KEEP_LOOP
    for (long long word = (begin >> 2) + lane; 4 * word < end; word += 32) {
      unsigned v = 0;
      for (int k = 0; k < 4; ++k) {
        const long long from = 4 * word + k - begin;
        if (from >= 0 && from < chunk.size) v |= (unsigned)data[from] << 8 * k;
      }
      if (4 * word < begin || 4 * word + 4 > end)
        atomicOr(&out[word], v);
      else
        out[word] = v;
    }
    return;
  }

  unsigned *stage = staged[warp], *code = codes[warp];
  unsigned char* lengths = coded[warp];
  int* next = nexts[warp];
  for (int s = lane; s < SYMBOLS; s += 32) lengths[s] = tables[number * SYMBOLS + s];
  for (int i = lane; i < STAGE; i += 32) stage[i] = 0;
  __syncwarp();
  if (lane == 0) {
    first_codes(lengths, SYMBOLS, next);
    KEEP_LOOP
    for (int s = 0; s < SYMBOLS; ++s)
      if (lengths[s]) code[s] = turned((unsigned)next[lengths[s]]++, lengths[s]) << 4 | lengths[s];
  }
  long long word = position >> 5;  // that the stage begins with
  int at = (int)(position & 31);   // bits in it, of which the first belong to others
  bool shared = true;
  // Stages a value of up to 32 bits.
  const auto put = [stage](int to, unsigned value) {
    const unsigned long long v = (unsigned long long)value << (to & 31);
    if ((unsigned)v) atomicOr(&stage[to >> 5], (unsigned)v);
    if ((unsigned)(v >> 32)) atomicOr(&stage[(to >> 5) + 1], (unsigned)(v >> 32));
  };
  // Writes the words that are full.
  const auto flush = [&]() {
    __syncwarp();
    const int full = at >> 5;
    for (int i = lane; i < full; i += 32) {
      if (shared && i == 0)
        atomicOr(&out[word], stage[0]);
      else
        out[word + i] = stage[i];
    }
    const unsigned rest = stage[full];
    __syncwarp();
    for (int i = lane; i <= full; i += 32) stage[i] = i == 0 ? rest : 0u;
    __syncwarp();
    if (full) shared = false;
    word += full;
    at &= 31;
  };
  for (int i = lane; 32 * i < start; i += 32) put(at + 32 * i, headers[number * HEADER_WORDS + i]);
  at += start;
  flush();
  Reader in{data, chunk.size, distance};
  const Symbol far = distance_symbol(distance);
  KEEP_LOOP
  for (int base = 0; base < chunk.size; base += 32) {
    const Role here = in.at(base);
    Symbol s{0, 0, 0};
    int width = 0;
    if (here.match) {
      s = length_symbol(here.match);
      width = (int)(code[s.symbol] & 15u) + s.more + 1 + far.more;
    }
    KEEP_LOOP
    for (int k = 0; k < here.literals; ++k) width += (int)(code[data[base + lane - k]] & 15u);
    int to = at + warp_before(width);
    at = __shfl_sync(ALL, to + width, 31);
    if (here.match) {
      const int own = (int)(code[s.symbol] & 15u);
      put(to, code[s.symbol] >> 4 | (unsigned)(s.rest | far.rest << (s.more + 1)) << own);
    }
    KEEP_LOOP
    for (int k = here.literals - 1; k >= 0; --k) {
      const unsigned c = code[data[base + lane - k]];
      put(to, c >> 4);
      to += (int)(c & 15u);
    }
    flush();
  }
  if (lane == 0) put(at, code[END] >> 4);
  at += (int)(code[END] & 15u);
  flush();
  if (lane == 0 && at) atomicOr(&out[word], stage[0]);
}
