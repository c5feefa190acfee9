// Whole kernels, compiled and run between guard pages, against the interpreter of the kernel IR.
#include "emit/cpp.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "compiled.h"
#include "interpreter.h"

namespace fuseloom::emit {
namespace {

struct Program {
  const char* text;                          // VECTOR stands for "vector <lanes of f32> x 1", VECTOR2 and VECTOR4 for more copies
  std::vector<std::vector<int64_t>> sizes;   // one run each
  double tolerance = 0;                      // relative, of floats; 0: the same number, and NaN for NaN
  // Inputs: small integers by default; `real`: any, with NaN, infinities and zeros of both signs.
  bool real = false;
};

const std::vector<Program>& programs() {
  static const std::vector<Program> all = {
      // ---- addresses: broadcast, reversed, strides 2, 3, 4, 7, unknown; rows; guards
      {R"(kernel strides(read @x: f32[7*n + 8], read @s: f32[1], write @y: f32[7*n]) sizes (n) facts (n in 0 to inf) {
        for i = 0 to n VECTOR2 {
          %s: f32 = load @s[0]
          %r: f32 = load @x[n - i]
          %a: f32 = load @x[i*2 + 1]
          %b: f32 = load @x[i*3]
          %c: f32 = load @x[i*4 + 3]
          %d: f32 = load @x[i*7 + 7]
          store @y[i] = %r
          store @y[n + i*2] = %a
          store @y[n + i*2 + 1] = %b
          store @y[n*4 - i - 1] = %c
          store @y[n*4 + i*3] = %d
          store @y[n*4 + i*3 + 1] = %s
          %sum: f32 = add(%a, %s)
          store @y[n*4 + i*3 + 2] = %sum
        })" "}", {{0}, {1}, {5}, {16}, {33}, {70}}},
      {R"(kernel transposed(read @x: f16[n*m], write @y: f16[n*m]) sizes (n, m) facts (n in 0 to inf, m in 0 to inf) {
        for i = 0 to n core {
          for j = 0 to m VECTOR {
            %a: f16 = load @x[j*n + i]
            %b: f32 = cast(%a)
            %c: f32 = neg(%b)
            %d: f16 = cast(%c)
            store @y[i*m + j] = %d
          }
        })" "}", {{3, 5}, {1, 16}, {17, 33}, {0, 4}, {4, 0}}},
      {R"(kernel blocks(read @x: f32[n*m], read @h: f16[n*m], write @y: f32[n*m], write @z: f16[n*m]) sizes (n, m) facts (n in 0 to inf, m in 0 to inf) {
        local @t: f32[n*m]
        transpose @t[0] pitch n = @x[0] pitch m rows n columns m
        transpose @z[0] pitch n = @h[0] pitch m rows n columns m
        for i = 0 to n*m VECTOR2 {
          prefetch @t[i + n]
          %a: f32 = load @t[i]
          %b: f32 = neg(%a)
          store @y[i] = %b
        })" "}", {{3, 5}, {1, 16}, {17, 33}, {32, 48}, {0, 4}, {4, 0}}},
      {R"(kernel gather(read @x: f32[m], read @index: i64[n], write @y: f32[n]) sizes (n, m) facts (m in 1 to inf, n in 0 to inf) {
        for i = 0 to n VECTOR2 {
          %k: i64 = load @index[i]
          define at = mod(k, m)
          %a: f32 = load @x[at]
          store @y[i] = %a
        })" "}", {{5, 3}, {33, 100}, {16, 1}}},
      {R"(kernel padded(read @x: f32[n*m], write @y: f32[(n + 2)*(m + 5)]) sizes (n, m) facts (m in 0 to inf, n in 0 to inf) {
        for i = 0 to n + 2 core {
          for j = 0 to m + 5 VECTOR2 {
            %a: f32 = load @x[(i - 1)*m + (j - 3)] if (le(1, i), le(i, n), le(3, j), lt(j, m + 3)) else -7.0
            store @y[i*(m + 5) + j] = %a
          }
        })" "}", {{1, 1}, {2, 20}, {3, 64}, {2, 0}}},
      {R"(kernel odd_guards(read @x: i32[n], write @y: i32[n]) sizes (n) facts (n in 0 to inf) {
        for i = 0 to n VECTOR {
          %a: i32 = load @x[n - i - 1] if (ne(mod(i, 3), 0)) else 5
          if eq(mod(i, 2), 0) {
            %b: i32 = load @x[floor_div(i, 2)]
            %c: i32 = add(%a, %b)
            store @y[i] = %c
          }
          store @y[i] = %a if (eq(mod(i, 2), 1))
        })" "}", {{1}, {2}, {15}, {16}, {17}, {50}}},
      // R19: floor semantics in index arithmetic, uniform and by lanes.
      {R"(kernel floors(write @y: i64[n*4]) sizes (n) facts (n in 0 to inf) {
        for i = -5 to n - 5 VECTOR {
          %a: i64 = index mod(i + 3, 4)
          %b: i64 = index floor_div(i - 3, 2)
          %c: i64 = index mod(i - 1, 3)
          %d: i64 = index select(lt(i, 0), min(i, -2), max(i, 2)) + eq(i, 1)
          store @y[(i + 5)*4] = %a
          store @y[(i + 5)*4 + 1] = %b
          store @y[(i + 5)*4 + 2] = %c
          store @y[(i + 5)*4 + 3] = %d
        })" "}", {{11}, {40}}},
      {R"(kernel floors_serial(write @y: i64[n*2]) sizes (n) facts (n in 0 to inf) {
        for i = -5 to n - 5 {
          define d = mod(i + 3, 4)
          %a: i64 = index d
          %b: i64 = index floor_div(i - 3, 2)
          store @y[(i + 5)*2] = %a
          store @y[(i + 5)*2 + 1] = %b
        })" "}", {{11}}},
      // R39: rows of odd pitch.
      {R"(kernel sliced(read @x: f32[n*4097], read @z: f32[(n - 1)*4096], write @y: f32[(n - 1)*4096]) sizes (n) facts (n in 1 to inf) {
        for i = 0 to n - 1 core {
          for j = 0 to 4096 VECTOR4 {
            %a: f32 = load @x[(i + 1)*4097 + j]
            %b: f32 = load @z[i*4096 + j]
            %c: f32 = add(%a, %b)
            store @y[i*4096 + j] = %c
          }
        })" "}", {{3}}},
      // ---- reductions
      {R"(kernel rows(read @x: f32[n*m], write @y: f32[n*4], write @z: i64[n*2]) sizes (n, m) facts (m in 0 to inf, n in 0 to inf) {
        for i = 0 to n core {
          reduce %sum: f32 = add, %top: f32 = max, %least: f32 = min, %best: i64 = argmax(%best_value: f32), %worst: i64 = argmin(%w: f32) last {
            for j = 0 to m VECTOR4 {
              %a: f32 = load @x[i*m + j]
              accumulate %sum with %a
              accumulate %top with %a
              accumulate %least with %a
              accumulate %best with %a at j
              accumulate %worst with %a at j
            }
          }
          store @y[i*4] = %sum
          store @y[i*4 + 1] = %top
          store @y[i*4 + 2] = %least
          store @y[i*4 + 3] = %best_value
          store @z[i*2] = %best
          store @z[i*2 + 1] = %worst
        })" "}", {{2, 1}, {3, 7}, {2, 16}, {2, 63}, {2, 64}, {2, 65}, {1, 300}, {2, 0}}, 1e-6},
      {R"(kernel rows_special(read @x: f32[n*m], write @y: f32[n*2], write @z: i64[n*3]) sizes (n, m) facts (m in 0 to inf, n in 0 to inf) {
        for i = 0 to n core {
          reduce %top: f32 = max, %least: f32 = min, %best: i64 = argmax(%bv: f32), %worst: i64 = argmin(%w: f32), %last: i64 = argmax(%l: f32) last {
            for j = 0 to m VECTOR2 {
              %a: f32 = load @x[i*m + j]
              accumulate %top with %a
              accumulate %least with %a
              accumulate %best with %a at j
              accumulate %worst with %a at j
              accumulate %last with %a at j
            }
          }
          store @y[i*2] = %top
          store @y[i*2 + 1] = %least
          store @z[i*3] = %best
          store @z[i*3 + 1] = %worst
          store @z[i*3 + 2] = %last
        })" "}", {{20, 1}, {20, 2}, {20, 7}, {10, 33}}, 0, true},
      // R16: i8 minimum over 33 values and its index; sums wrap.
      {R"(kernel bytes(read @x: i8[n], write @y: i8[3], write @z: i64[1]) sizes (n) facts (n in 0 to inf) {
        reduce %least: i8 = min, %sum: i8 = add, %product: i8 = mul, %at: i64 = argmin(%v: i8) {
          for j = 0 to n VECTOR2 {
            %a: i8 = load @x[j]
            accumulate %least with %a
            accumulate %sum with %a
            accumulate %product with %a
            accumulate %at with %a at j
          }
        }
        store @y[0] = %least
        store @y[1] = %sum
        store @y[2] = %product
        store @z[0] = %at
      })", {{33}, {1}, {200}}},
      {R"(kernel counts(read @x: u16[n], read @b: bool[n], write @any: bool[2], write @y: u16[2], write @d: f64[1]) sizes (n) facts (n in 0 to inf) {
        reduce %some: bool = or, %every: bool = and, %top: u16 = max, %least: u16 = min, %wide: f64 = add {
          for j = 0 to n VECTOR2 {
            %a: u16 = load @x[j]
            %c: bool = load @b[j]
            %w: f64 = cast(%a)
            accumulate %some with %c
            accumulate %every with %c
            accumulate %top with %a
            accumulate %least with %a
            accumulate %wide with %w
          }
        }
        store @any[0] = %some
        store @any[1] = %every
        store @y[0] = %top
        store @y[1] = %least
        store @d[0] = %wide
      })", {{0}, {1}, {17}, {100}}},
      {R"(kernel columns(read @x: bf16[n*m], write @y: f32[m*2], write @z: i64[m]) sizes (n, m) facts (m in 0 to inf, n in 0 to inf) {
        for j = 0 to m VECTOR2 {
          reduce %sum: f32 = add, %top: f32 = max, %best: i64 = argmax(%v: f32) {
            for i = 0 to n {
              %h: bf16 = load @x[i*m + j]
              %a: f32 = cast(%h)
              accumulate %sum with %a
              accumulate %top with %a
              accumulate %best with %a at i
            }
          }
          store @y[j] = %sum
          store @y[m + j] = %top
          store @z[j] = %best
        })" "}", {{3, 1}, {5, 16}, {9, 37}, {0, 5}}, 1e-6},
      {R"(kernel nested(read @x: f32[n*m*k], write @y: f32[1]) sizes (n, m, k) facts (m in 0 to inf, n in 0 to inf, k in 0 to inf) {
        reduce %total: f32 = add {
          for i = 0 to n {
            reduce %row: f32 = max {
              for j = 0 to m {
                for l = 0 to k VECTOR2 {
                  %a: f32 = load @x[(i*m + j)*k + l]
                  accumulate %row with %a
                }
              }
            }
            accumulate %total with %row
          }
          for l = 0 to k VECTOR {
            %b: f32 = load @x[l]
            accumulate %total with %b
          }
        }
        store @y[0] = %total
      })", {{2, 3, 5}, {3, 2, 40}, {1, 1, 1}}, 1e-6},
      {R"(kernel masked_sum(read @x: f32[n], write @y: f32[2]) sizes (n) facts (n in 0 to inf) {
        reduce %even: f32 = add, %count: i64 = add {
          for i = 0 to n VECTOR2 {
            if eq(mod(i, 3), 1) {
              %a: f32 = load @x[i]
              %one: i64 = constant 1
              accumulate %even with %a
              accumulate %count with %one
            }
          }
        }
        %c: f32 = cast(%count)
        store @y[0] = %even
        store @y[1] = %c
      })", {{0}, {1}, {2}, {33}, {100}}, 1e-6},
      {R"(kernel running(read @x: f32[n*m], write @y: f32[n*m]) sizes (n, m) facts (m in 0 to inf, n in 0 to inf) {
        for j = 0 to m VECTOR {
          reduce %sum: f32 = add {
            for i = 0 to n {
              %a: f32 = load @x[i*m + j]
              accumulate %sum with %a
              %now: f32 = current %sum
              store @y[i*m + j] = %now
            }
          }
        })" "}", {{5, 33}, {1, 1}}, 1e-6},
      {R"(kernel running_serial(read @x: i32[n], readwrite @h: i32[4], write @y: i32[n]) sizes (n) facts (n in 0 to inf) {
        reduce %sum: i32 = add {
          for i = 0 to n {
            %a: i32 = load @x[i]
            %before: i32 = current %sum
            store @y[i] = %before
            accumulate %sum with %a
            store add @h[mod(i, 4)] = %a
            store max @h[3] = %a
          }
        })" "}", {{9}}},
      {R"(kernel softmax(read @x: f32[n*m], write @y: f32[n*m]) sizes (n, m) facts (m in 0 to inf, n in 0 to inf) {
        local @row: f32[m]
        for i = 0 to n core {
          reduce %top: f32 = max {
            for j = 0 to m VECTOR4 {
              %a: f32 = load @x[i*m + j]
              accumulate %top with %a
            }
          }
          reduce %sum: f32 = add {
            for j = 0 to m VECTOR2 {
              %b: f32 = load @x[i*m + j]
              %c: f32 = sub(%b, %top)
              %d: f32 = exp(%c)
              store @row[j] = %d
              accumulate %sum with %d
            }
          }
          for j = 0 to m VECTOR {
            %e: f32 = load @row[j]
            %f: f32 = div(%e, %sum)
            store @y[i*m + j] = %f
          }
        })" "}", {{3, 5}, {2, 127}, {1, 1}, {2, 0}}, 2e-6},
      // ---- others
      {R"(kernel random(write @y: u32[n]) sizes (n) facts (n in 0 to inf) {
        for i = 0 to n VECTOR {
          %r: u32 = philox 1234567890123, i + 5
          store @y[i] = %r
        })" "}", {{0}, {40}}},
      {R"(kernel widths(read @a: i64[n], read @b: i8[n], read @c: f32[n], read @t: bool[n], write @y: f32[n], write @z: bool[n]) sizes (n) facts (n in 0 to inf) {
        for i = 0 to n VECTOR2 {
          %a: i64 = load @a[i]
          %b: i8 = load @b[i]
          %c: f32 = load @c[i]
          %t: bool = load @t[i]
          %zero: i64 = constant 0
          %p: bool = gt(%a, %zero)
          %e: i8 = constant 2
          %q: bool = lt(%b, %e)
          %pq: bool = and(%p, %q)
          %tq: bool = xor(%t, %pq)
          %af: f32 = cast(%a)
          %bf: f32 = cast(%b)
          %s: f32 = select(%tq, %af, %bf)
          %u: f32 = add(%s, %c)
          %yes: bool = constant 1
          %w: bool = select(%t, %tq, %yes)
          store @y[i] = %u
          store @z[i] = %w
        })" "}", {{1}, {16}, {45}}},
      {R"(kernel uniform_branch(read @x: f32[n], write @y: f32[n]) sizes (n, flag) facts (n in 0 to inf, flag in 0 to 1) {
        for i = 0 to n VECTOR2 {
          %a: f32 = load @x[i] if (eq(flag, 1)) else 3.0
          if eq(flag, 0) {
            %b: f32 = neg(%a)
            store @y[i] = %b
          }
          store @y[i] = %a if (eq(flag, 1))
        })" "}", {{40, 0}, {40, 1}}},
      {R"(kernel unrolled(read @x: f32[4*n], write @y: f32[n]) sizes (n) facts (n in 0 to inf) {
        for i = 0 to n VECTOR {
          reduce %s: f32 = add {
            for k = 0 to 4 unroll {
              %a: f32 = load @x[k*n + i]
              accumulate %s with %a
            }
          }
          store @y[i] = %s
        })" "}", {{20}}},
      {R"(kernel triangle(read @x: f32[n*n], write @y: f32[n]) sizes (n) facts (n in 0 to inf) {
        for i = 0 to n VECTOR {
          reduce %s: f32 = add {
            for k = 0 to i + 1 {
              %a: f32 = load @x[k*n + i]
              accumulate %s with %a
            }
          }
          store @y[i] = %s
        })" "}", {{1}, {20}}},
      {R"(kernel complex_rows(read @x: c64[n*m], write @y: c64[n*m], write @s: c64[n]) sizes (n, m) facts (m in 0 to inf, n in 0 to inf) {
        for i = 0 to n {
          reduce %sum: c64 = add {
            for j = 0 to m VECTOR {
              %a: c64 = load @x[i*m + j]
              %g: c64 = load @x[i*m + j - 1] if (lt(0, j)) else 0.0
              %k: c64 = constant (0.0, 1.0)
              %b: c64 = mul(%a, %k)
              %d: c64 = add(%b, %g)
              store @y[i*m + (m - 1 - j)] = %d
              accumulate %sum with %a
            }
          }
          store @s[i] = %sum
        })" "}", {{2, 1}, {2, 37}}, 1e-5},
      // ---- contractions
      {R"(kernel matmul(read @a: f32[m*k], read @b: f32[k*n], read @bias: f32[n], write @c: f32[m*n]) sizes (m, n, k) facts (m in 0 to inf, n in 0 to inf, k in 0 to inf) {
        for block = 0 to floor_div(m + 11, 12) core {
          define rows = min(12, m - block*12)
          contract f32 im = 0 to rows, in = 0 to n, ik = 0 to k tile 6 x 32 block 8, 12, 64 {
            lhs %av {
              %av: f32 = load @a[(block*12 + im)*k + ik]
            }
            rhs %bv {
              %b0: f32 = load @b[ik*n + in]
              %two: f32 = constant 2.0
              %bv: f32 = mul(%b0, %two)
            }
            epilogue %sum: f32 {
              %w: f32 = load @bias[in]
              %r: f32 = add(%sum, %w)
              store @c[(block*12 + im)*n + in] = %r
            }
          }
        })" "}", {{1, 1, 1}, {5, 33, 7}, {13, 70, 20}, {6, 32, 8}, {30, 130, 9}, {3, 4, 0}, {0, 4, 3}}, 1e-5},
      {R"(kernel matmul_transposed(read @a: f16[m*k], read @b: bf16[k*n], write @c: f16[m*n]) sizes (m, n, k) facts (m in 0 to inf, n in 0 to inf, k in 0 to inf) {
        contract f32 im = 0 to m, in = 0 to n, ik = 0 to k tile 4 x 16 block 16, 8, 32 {
          lhs %av {
            %a0: f16 = load @a[ik*m + im]
            %av: f32 = cast(%a0)
          }
          rhs %bv {
            define at = in*k + ik
            %b0: bf16 = load @b[at]
            %bv: f32 = cast(%b0)
          }
          epilogue %sum: f32 {
            %r: f16 = cast(%sum)
            store @c[im*n + in] = %r
          }
        })" "}", {{1, 1, 1}, {9, 20, 40}, {8, 16, 16}, {17, 65, 33}}, 1e-3},
      {R"(kernel matmul_integers(read @a: i8[m*k], read @b: u8[k*n], write @c: i32[n*m]) sizes (m, n, k) facts (m in 0 to inf, n in 0 to inf, k in 0 to inf) {
        contract i32 im = 0 to m, in = 0 to n, ik = 0 to k tile 4 x 16 block 16, 8, 32 {
          lhs %av {
            %a0: i8 = load @a[im*k + ik]
            %av: i32 = cast(%a0)
          }
          rhs %bv {
            %b0: u8 = load @b[ik*n + in]
            %bv: i32 = cast(%b0)
          }
          epilogue %sum: i32 {
            store @c[in*m + im] = %sum
          }
        })" "}", {{5, 20, 17}, {8, 16, 16}}},
      {R"(kernel matmul_packed(read @a: f64[m*k], read @b: f64[k*n], readwrite @pa: f64[floor_div(m + 2, 3)*3*k], readwrite @pb: f64[floor_div(n + 15, 16)*16*k], write @c: f64[m*n]) sizes (m, n, k) facts (m in 1 to inf, n in 1 to inf, k in 1 to inf) {
        for p = 0 to floor_div(m + 2, 3) {
          for i = 0 to k {
            for t = 0 to 3 {
              %a: f64 = load @a[(p*3 + t)*k + i] if (lt(p*3 + t, m)) else 0.0
              store @pa[p*3*k + i*3 + t] = %a
            }
          }
        }
        for p = 0 to floor_div(n + 15, 16) {
          for i = 0 to k {
            for t = 0 to 16 VECTOR {
              %b: f64 = load @b[i*n + p*16 + t] if (lt(p*16 + t, n)) else 0.0
              store @pb[p*16*k + i*16 + t] = %b
            }
          }
        }
        contract f64 im = 0 to m, in = 0 to n, ik = 0 to k tile 3 x 16 block 8, 6, 32 {
          lhs packed @pa[0]
          rhs packed @pb[0]
          epilogue %sum: f64 {
            store @c[im*n + in] = %sum
          }
        })" "}", {{1, 1, 1}, {7, 40, 19}}, 1e-12},
  };
  return all;
}

std::string with_vectors(std::string text, int lanes) {
  const auto replace = [&](const std::string& from, const std::string& to) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
  };
  replace("VECTOR2", fmt::format("vector {} x 2", lanes));
  replace("VECTOR4", fmt::format("vector {} x 4", lanes));
  replace("VECTOR", fmt::format("vector {} x 1", lanes));
  return text;
}

Tensor random_tensor(DType dtype, int64_t n, bool real, std::mt19937_64& random) {
  Tensor tensor(dtype, {n});
  const double specials[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 0.0, -0.0, 1.0};
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t r = random();
    if (real && r % 3 == 0) tensor.set(i, specials[r / 3 % (r % 2 == 0 ? 8 : 5) + (r % 2 == 0 ? 0 : 3)]);
    else if (is_complex(dtype)) tensor.set_complex(i, static_cast<double>(r % 17) - 8, static_cast<double>((r >> 20) % 17) - 8);
    else if (dtype == DType::Bool) tensor.set_int(i, static_cast<int64_t>(r & 1));
    else if (is_int(dtype)) tensor.set_int(i, is_unsigned_int(dtype) ? static_cast<int64_t>(r % 120) : static_cast<int64_t>(r % 200) - 100);
    else tensor.set(i, static_cast<double>(r % 129) / 16 - 4);
  }
  return tensor;
}

class Kernels : public ::testing::TestWithParam<size_t> {};

TEST_P(Kernels, DoWhatTheirTextSays) {
  const std::vector<Toolchain> chains = toolchains();
  if (GetParam() >= chains.size()) GTEST_SKIP() << "no such compiler or instruction set here";
  const Toolchain& toolchain = chains[GetParam()];
  std::vector<kernel::Kernel> kernels;
  for (const Program& program : programs()) {
    kernels.push_back(kernel::parse_kernel(with_vectors(program.text, toolchain.target.vector_bytes / 4), op::standard_ops()));
    ASSERT_NO_THROW(kernel::verify(kernels.back()));
  }
  CppTarget target = toolchain.target;
  target.streamed_bytes = 256;   // some of the sizes are below, some above
  const std::string source = to_cpp(kernels, target);
  EXPECT_NE(source.find("stream_"), std::string::npos);
  EXPECT_EQ(source, to_cpp(kernels, target));
  const Library library(source, toolchain, GetParam() == 0 ? "-O2" : "-O1");
  ASSERT_TRUE(library.loaded());
  for (size_t index = 0; index < kernels.size(); ++index) {
    const Program& program = programs()[index];
    const kernel::Kernel& kernel = kernels[index];
    for (const std::vector<int64_t>& sizes : program.sizes) {
      const uint64_t seed = 7 * index + static_cast<uint64_t>(sizes[0]);
      SCOPED_TRACE(fmt::format("{} sizes {} {} seed {}", kernel.name, fmt::join(sizes, " "), toolchain.name(), seed));
      std::mt19937_64 random(seed);
      std::map<std::string, int64_t> symbols;
      for (size_t i = 0; i < sizes.size(); ++i) symbols[kernel.symbols[i]] = sizes[i];
      std::vector<Tensor> expected;
      std::vector<std::unique_ptr<GuardedBuffer>> memory;
      std::vector<void*> pointers;
      for (const kernel::Buffer& buffer : kernel.buffers) {
        if (buffer.space != kernel::Space::Global) continue;
        const int64_t count = sym::evaluate(buffer.size, symbols);
        Tensor tensor = random_tensor(buffer.dtype, count, program.real, random);
        // Odd kernels end at the guard page, even ones begin behind it.
        memory.push_back(std::make_unique<GuardedBuffer>(static_cast<size_t>(tensor.bytes()), (index + memory.size()) % 4 != 0));
        std::memcpy(memory.back()->data(), tensor.data(), static_cast<size_t>(tensor.bytes()));
        pointers.push_back(memory.back()->data());
        expected.push_back(std::move(tensor));
      }
      Interpreter(kernel, expected, sizes).run();
      const GuardedBuffer scratch(static_cast<size_t>(sym::evaluate(sym::round_up(scratch_bytes(kernel, toolchain.target), 64), symbols)));
      // In two ranges, as two workers would.
      const int64_t extent = sym::evaluate(core_extent(kernel), symbols), half = extent / 2;
      char* const work = static_cast<char*>(scratch.data());
      library.function(kernel.name)(pointers.data(), sizes.data(), work, half, extent);
      if (half > 0) library.function(kernel.name)(pointers.data(), sizes.data(), work, 0, half);
      int errors = 0;
      for (size_t b = 0; b < expected.size(); ++b) {
        const Tensor found = Tensor::borrow(expected[b].dtype(), expected[b].dims(), pointers[b]);
        for (int64_t i = 0; i < expected[b].count() && errors < 3; ++i) {
          for (const bool imaginary : {false, true}) {
            const double want = imaginary ? expected[b].imag_at(i) : expected[b].at(i), have = imaginary ? found.imag_at(i) : found.at(i);
            const bool close = std::abs(want - have) <= program.tolerance * std::max(1.0, std::abs(want));
            const bool same = (want == have && std::signbit(want) == std::signbit(have)) || (std::isnan(want) && std::isnan(have));
            if (same || (program.tolerance > 0 && close)) continue;
            ++errors;
            ADD_FAILURE() << "@" << kernel.buffers[b].name << "[" << i << "] is " << have << " instead of " << want;
          }
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Toolchains, Kernels, ::testing::Range(size_t{0}, size_t{6}));

// The whole text, as it was read and found good: test/golden/emit/<kernel>.fl → <kernel>.cpp.txt, for AVX-512.
TEST(Cpp, GoldenText) {
  const auto read_file = [](const std::filesystem::path& path) {
    std::ifstream in(path);
    return std::string((std::istreambuf_iterator<char>(in)), {});
  };
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(FUSELOOM_GOLDEN_DIR)) {
    if (entry.path().extension() != ".fl") continue;
    const kernel::Kernel kernel = kernel::parse_kernel(read_file(entry.path()), op::standard_ops());
    const std::filesystem::path golden = std::filesystem::path(entry.path()).replace_extension(".cpp.txt");
    const std::string text = to_cpp({kernel}, CppTarget{});
    if (text != read_file(golden)) {
      const std::filesystem::path written = std::filesystem::temp_directory_path() / golden.filename();
      std::ofstream(written) << text;
      ADD_FAILURE() << golden << " differs from " << written;
    }
    ++count;
  }
  EXPECT_GE(count, 2u);
}

TEST(Cpp, ScratchHoldsLocalsAndContractions) {
  const kernel::Kernel k = kernel::parse_kernel(
      "kernel k(write @y: f32[n]) sizes (n) { local @a: f32[n] local @b: i8[3] }", op::standard_ops());
  EXPECT_EQ(sym::evaluate(scratch_bytes(k, {}), {{"n", 17}}), 128 + 64);
  EXPECT_EQ(sym::evaluate(core_extent(k), {{"n", 17}}), 1);
}

}  // namespace
}  // namespace fuseloom::emit
