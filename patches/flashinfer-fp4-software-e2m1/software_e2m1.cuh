// What GPUs below SM100 need for FP4 quantization, in ordinary arithmetic.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace tensorrt_llm {
namespace kernels {

// Return 2^23 + code as the bits of a float; code is the E2M1 code of |x|: to nearest, ties to the
// even code, saturated at 6. With a = |x|, the code as a real number is the concave
// min(2a, a + 2, a / 2 + 4, 7). Each term plus 2^23 is rounded once, to a whole number, and rounding
// is monotone, so the least of the rounded terms is the rounded least. NaN becomes 7: fminf drops
// it. The intrinsics keep -use_fast_math from contracting and reordering.
__device__ __forceinline__ uint32_t patchkit_e2m1_magnitude(float x) {
  constexpr float kWhole = 8388608.0f;
  float const a = fabsf(x);
  float code = fminf(__fmaf_rn(a, 2.0f, kWhole), __fadd_rn(a, kWhole + 2.0f));
  code = fminf(code, __fmaf_rn(a, 0.5f, kWhole + 4.0f));
  return __float_as_uint(fminf(code, kWhole + 7.0f));
}

// Eight values to eight codes, the first in the lowest bits. The same bits as
// cvt.rn.satfinite.e2m1x2.f32 gives for products, whose NaN is positive.
__device__ __forceinline__ uint32_t patchkit_e2m1(float x0, float x1, float x2, float x3, float x4,
                                                  float x5, float x6, float x7) {
  uint32_t codes = patchkit_e2m1_magnitude(x7);
  codes = codes * 16 + patchkit_e2m1_magnitude(x6);
  codes = codes * 16 + patchkit_e2m1_magnitude(x5);
  codes = codes * 16 + patchkit_e2m1_magnitude(x4);
  codes = codes * 16 + patchkit_e2m1_magnitude(x3);
  codes = codes * 16 + patchkit_e2m1_magnitude(x2);
  codes = codes * 16 + patchkit_e2m1_magnitude(x1);
  codes = codes * 16 + patchkit_e2m1_magnitude(x0);
  codes -= 0xFB000000u;  // what eight times 2^23 leave

  // Shift in the top four bits of each value; only the sign bits are kept.
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

__device__ __forceinline__ uint32_t fp32_vec_to_e2m1(float (&x)[8]) {
  return patchkit_e2m1(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]);
}

__device__ __forceinline__ uint32_t fp32_vec_to_e2m1(float2 (&x)[4]) {
  return patchkit_e2m1(x[0].x, x[0].y, x[1].x, x[1].y, x[2].x, x[2].y, x[3].x, x[3].y);
}

__device__ __forceinline__ uint64_t fp32_vec_to_e2m1(float2 (&x)[8]) {
  uint32_t low = patchkit_e2m1(x[0].x, x[0].y, x[1].x, x[1].y, x[2].x, x[2].y, x[3].x, x[3].y);
  uint32_t high = patchkit_e2m1(x[4].x, x[4].y, x[5].x, x[5].y, x[6].x, x[6].y, x[7].x, x[7].y);
  return static_cast<uint64_t>(high) << 32 | low;
}

// The value of an E2M1 code: its bits are those of a half with another exponent bias.
__device__ __forceinline__ float patchkit_e2m1_value(uint32_t code) {
  uint32_t const bits = (code & 7) << 9 | (code & 8) << 12;
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits))) * 16384.0f;
}

__device__ __forceinline__ float2 e2m1x2_byte_to_float2(uint32_t byte) {
  return make_float2(patchkit_e2m1_value(byte & 15), patchkit_e2m1_value(byte >> 4 & 15));
}

// The products are exact in the half precision that SM100 takes here, and so they are in float.
__device__ __forceinline__ float2 e2m1x2_byte_scaled_e4m3_to_float2(uint32_t byte, uint8_t scale) {
  __nv_fp8_e4m3 e4m3;
  e4m3.__x = scale;
  float const factor = static_cast<float>(e4m3);
  float2 const values = e2m1x2_byte_to_float2(byte);
  return make_float2(values.x * factor, values.y * factor);
}

// Load sixteen bytes at once where the address allows it: FlashInfer's type has an alignment of 4.
template <class Vector>
__device__ __forceinline__ Vector patchkit_load(Vector const* from) {
  static_assert(sizeof(Vector) % 16 == 0);
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    return *from;
  }
  Vector vector;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Vector) / 16); ++i) {
    reinterpret_cast<uint4*>(&vector)[i] = reinterpret_cast<uint4 const*>(from)[i];
  }
  return vector;
}

#define PATCHKIT_LOAD(from) patchkit_load(from)

// Sixteen values a thread, eight bytes of codes.
#define PATCHKIT_ELTS_PER_THREAD(kind) (kind == BlockScaleQuantizationType::FP16_TO_FP4 ? 16 : 8)
#define PATCHKIT_OUT uint64_t

}  // namespace kernels
}  // namespace tensorrt_llm
