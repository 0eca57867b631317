// E2M1 conversion in ordinary arithmetic, for GPUs below SM100, which have no cvt.e2m1x2.
#pragma once

#include <cstdint>

namespace patchkit {

// Return the E2M1 code of |x| in the low bits of the float 2^23 + code, rounded to nearest, ties to
// the even code, saturated at 6. With a = |x|, the code as a real number is the concave
// min(2a, a + 2, a / 2 + 4, 7). Each term plus 2^23 is rounded once, to a whole number, and because
// rounding is monotone, the least of the rounded terms is the rounded least. NaN becomes 7: fminf
// drops it. The intrinsics keep -use_fast_math from contracting or reordering.
__device__ __forceinline__ uint32_t e2m1_magnitude(float x) {
  constexpr float kWhole = 8388608.0f;
  float a = fabsf(x);
  float code = fminf(__fmaf_rn(a, 2.0f, kWhole), __fadd_rn(a, kWhole + 2.0f));
  code = fminf(code, __fmaf_rn(a, 0.5f, kWhole + 4.0f));
  return __float_as_uint(fminf(code, kWhole + 7.0f));
}

// Eight values to eight codes, the first in the lowest bits; the same bits as
// cvt.rn.satfinite.e2m1x2.f32 gives for products, whose NaN is positive.
__device__ __forceinline__ uint32_t e2m1x8(float x0, float x1, float x2, float x3, float x4,
                                           float x5, float x6, float x7) {
  uint32_t codes = e2m1_magnitude(x7);
  codes = codes * 16 + e2m1_magnitude(x6);
  codes = codes * 16 + e2m1_magnitude(x5);
  codes = codes * 16 + e2m1_magnitude(x4);
  codes = codes * 16 + e2m1_magnitude(x3);
  codes = codes * 16 + e2m1_magnitude(x2);
  codes = codes * 16 + e2m1_magnitude(x1);
  codes = codes * 16 + e2m1_magnitude(x0);
  codes -= 0xFB000000u;  // what is left of eight times 2^23

  // Shift in the top four bits of each value; only their sign bits are kept.
  uint32_t signs = __float_as_uint(x7) >> 28;
  signs = __funnelshift_l(__float_as_uint(x6), signs, 4);
  signs = __funnelshift_l(__float_as_uint(x5), signs, 4);
  signs = __funnelshift_l(__float_as_uint(x4), signs, 4);
  signs = __funnelshift_l(__float_as_uint(x3), signs, 4);
  signs = __funnelshift_l(__float_as_uint(x2), signs, 4);
  signs = __funnelshift_l(__float_as_uint(x1), signs, 4);
  signs = __funnelshift_l(__float_as_uint(x0), signs, 4);
  return codes | (signs & 0x88888888u);
}

// The three forms of fp32_vec_to_e2m1.
__device__ __forceinline__ uint32_t e2m1_codes(float (&x)[8]) {
  return e2m1x8(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]);
}

__device__ __forceinline__ uint32_t e2m1_codes(float2 (&x)[4]) {
  return e2m1x8(x[0].x, x[0].y, x[1].x, x[1].y, x[2].x, x[2].y, x[3].x, x[3].y);
}

__device__ __forceinline__ uint64_t e2m1_codes(float2 (&x)[8]) {
  uint32_t low = e2m1x8(x[0].x, x[0].y, x[1].x, x[1].y, x[2].x, x[2].y, x[3].x, x[3].y);
  uint32_t high = e2m1x8(x[4].x, x[4].y, x[5].x, x[5].y, x[6].x, x[6].y, x[7].x, x[7].y);
  return static_cast<uint64_t>(high) << 32 | low;
}

}  // namespace patchkit
