// SPDX-License-Identifier: BSD-3-Clause
#include "decode.cuh"

using namespace decode;

namespace {

constexpr unsigned ALL = 0xffffffffu;
constexpr int THREADS = 256, SPAN = 8 * THREADS;  // of tiles that are not coded: pixels of a block
constexpr int RICE_THREADS = 64;

// Bytes that will be needed soon; a hint.
__device__ __forceinline__ void prefetch(const void* at) {
#ifdef __CUDACC_RTC__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#else
  (void)at;
#endif
}

// The form stands first in what the host has laid out; every thread of a block reads it from shared memory.
__device__ __forceinline__ void share(const unsigned char* tables, Form* form) {
  for (int i = threadIdx.x; i < (int)(sizeof(Form) / sizeof(int)); i += blockDim.x)
    ((int*)form)[i] = ((const int*)tables)[i];
  __syncthreads();
}

// Then come the tiles, and the boxes of all if one of them needs its own.
__device__ __forceinline__ const Tile* tiles_of(const unsigned char* tables) {
  return (const Tile*)(tables + sizeof(Form));
}

}  // namespace

// Rice-coded tiles, LANES lanes of a warp each: `list` names `count` of the `all` tiles. Of each tile, `found` gets its
// fault, nulls, missing and infinite pixels. Pixels of a tile with a fault are not to be used.
template <int LANES>
__global__ void __launch_bounds__(RICE_THREADS, 8)
    rice_tiles(const unsigned char* __restrict__ heap, long long size, const unsigned char* __restrict__ tables, int all,
               const int* __restrict__ list, int count, const float* __restrict__ numbers, void* __restrict__ out,
               int* __restrict__ mask, int* __restrict__ found) {
  constexpr int EACH = 32 / LANES;
  __shared__ Form form;
  __shared__ int places[RICE_THREADS / 32][EACH][33];
  share(tables, &form);
  const int lane = threadIdx.x & 31, own = lane & (LANES - 1), last = lane | (LANES - 1);
  const int group = (blockIdx.x * (RICE_THREADS / 32) + (threadIdx.x >> 5)) * EACH;
  if (group >= count) return;
  const bool mine = group + lane / LANES < count;
  const int t = list[mine ? group + lane / LANES : group];
  const Tile tile = tiles_of(tables)[t];
  const Box& box = ((const Box*)(tiles_of(tables) + all))[t];
  const int width = form.width;

  int fault = is_outside(tile, size) ? OUTSIDE : tile.length < width / 8 ? SHORT : tile.fault;
  bool active = mine && fault == 0;
  Stream stream(heap + (active ? tile.offset : 0), active ? tile.length : 0);
  unsigned value = 0;
  Dither dither = {0, 0};
  if (active) {
    value = stream.before(stream.at + width, width);
    stream.move(stream.at + width);
    if (tile.dither >= 0) dither.begin(numbers, tile.dither, 1);
  }
  Counts counts;
  int* const stop = places[threadIdx.x >> 5][lane / LANES];
  int done = 0, left = 0, split = -1;  // pixels decoded, pixels of the block to come
  while (__any_sync(ALL, active)) {
    if (active && left == 0) {
      left = minimum(form.block, tile.pixels - done);
      split = take_selector(stream, width);
      if (split > verbatim(width)) {
        fault = SELECTOR;
        active = false;
      }
      const int soon = (stream.at >> 5) + 96;
      if (own == 0 && soon < stream.whole) prefetch(stream.words + soon);
    }
    const int n = active ? minimum(32, left) : 0, begin = stream.at;
    // where codes end: one after the other, found by all lanes of the group alike, unless all are of one length
    const bool sought = split >= 0 && split < verbatim(width);
    if (sought) {
      if (own == 0) stop[0] = begin;
#pragma unroll 4
      for (int j = 1; j <= n; ++j) {
        stream.skip_code(split);
        if (own == 0) stop[j] = stream.at;
      }
    } else if (split >= 0 && n) {
      stream.move(begin + n * width);
    }
    __syncwarp();
    KEEP_LOOP
    for (int m = 0; m < 32; m += LANES) {
      const int j = m + own;
      unsigned sum = 0;
      if (j < n && split >= 0) {
        const int to = sought ? stop[j + 1] : begin + (j + 1) * width;
        sum = unmapped(sought ? code_value(stream, stop[j], to, split) : stream.before(to, width));
      }
      for (int d = 1; d < LANES; d *= 2) {
        const unsigned other = __shfl_up_sync(ALL, sum, d);
        if (own >= d) sum += other;
      }
      sum += value;
      value = __shfl_sync(ALL, sum, last);
      if (j < n) {
        const long long place = place_of(form, tile, box, done + j);
        const float number = tile.dither >= 0 ? numbers[dither.index(numbers, j)] : 0.0f;
        if (place >= 0) put_integer(as_stored(sum, width), form, tile, number, place, out, mask, counts);
      }
    }
    __syncwarp();
    if (active) {
      done += n;
      left -= n;
      if (tile.dither >= 0) dither.advance(numbers, n);
      if (stream.is_over())
        fault = SHORT;
      else if (done == tile.pixels && stream.goes_on())
        fault = TRAILING;
      active = fault == 0 && done < tile.pixels;
    }
  }
  for (int d = 1; d < LANES; d *= 2) {
    counts.nulls += __shfl_xor_sync(ALL, counts.nulls, d);
    counts.missing += __shfl_xor_sync(ALL, counts.missing, d);
    counts.infinite += __shfl_xor_sync(ALL, counts.infinite, d);
  }
  if (mine && own == 0) {
    found[4 * t] = fault;
    found[4 * t + 1] = counts.nulls;
    found[4 * t + 2] = counts.missing;
    found[4 * t + 3] = counts.infinite;
  }
}

// Tiles that are not coded, `parts` blocks each, from the heap or from what the host has unpacked; otherwise as above,
// with `found` 0 before.
__global__ void __launch_bounds__(THREADS)
    stored_tiles(const unsigned char* __restrict__ heap, long long size, const unsigned char* __restrict__ unpacked,
                 long long unpacked_size, const unsigned char* __restrict__ tables, int all,
                 const int* __restrict__ list, int parts, const float* __restrict__ numbers, void* __restrict__ out,
                 int* __restrict__ mask, int* __restrict__ found) {
  __shared__ Form form;
  share(tables, &form);
  const int t = list[blockIdx.x / parts], part = blockIdx.x % parts;
  const Tile tile = tiles_of(tables)[t];
  const Box& box = ((const Box*)(tiles_of(tables) + all))[t];
  const int fault = is_outside(tile, tile.unpacked ? unpacked_size : size) ? OUTSIDE : tile.fault;
  if (fault) {
    if (part == 0 && threadIdx.x == 0) found[4 * t] = fault;
    return;
  }
  const unsigned char* bytes = (tile.unpacked ? unpacked : heap) + tile.offset;
  Counts counts;
  const long long first = (long long)part * SPAN;
#pragma unroll 4
  for (int i = 0; i < SPAN / THREADS; ++i) {
    const long long k = first + i * THREADS + threadIdx.x;
    if (k >= tile.pixels) break;
    const int j = (int)k;
    const long long place = place_of(form, tile, box, j);
    if (place < 0) continue;
    const float number = tile.dither >= 0 ? numbers[number_index(numbers, tile.dither, j)] : 0.0f;
    put_element(element(bytes, tile, j), form, tile, number, place, out, mask, counts);
  }
  // rarely any
  if (counts.nulls) atomicAdd(&found[4 * t + 1], counts.nulls);
  if (counts.missing) atomicAdd(&found[4 * t + 2], counts.missing);
  if (counts.infinite) atomicAdd(&found[4 * t + 3], counts.infinite);
}
