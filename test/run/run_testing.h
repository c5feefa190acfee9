// Small programs as text, with kernels written by hand: the runtime is tested without the compiler.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <stdexcept>
#include <string>

#include "base/check.h"
#include "run/executable.h"

namespace fuseloom::run {

// All kernels take f32 buffers and one size, the number of elements, which is also their extent, unless they say otherwise.
inline const float* in(void* const* buffers, int i) { return static_cast<const float*>(buffers[i]); }
inline float* out(void* const* buffers, int i) { return static_cast<float*>(buffers[i]); }

inline KernelFunction test_kernel(const std::string& name) {
  static const std::map<std::string, KernelFunction> kernels = {
      {"add_one",
       [](void* const* b, const int64_t*, char*, int64_t begin, int64_t end) {
         for (int64_t i = begin; i < end; ++i) out(b, 1)[i] = in(b, 0)[i] + 1;
       }},
      {"twice",
       [](void* const* b, const int64_t*, char*, int64_t begin, int64_t end) {
         for (int64_t i = begin; i < end; ++i) out(b, 1)[i] = 2 * in(b, 0)[i];
       }},
      {"add",
       [](void* const* b, const int64_t*, char*, int64_t begin, int64_t end) {
         for (int64_t i = begin; i < end; ++i) out(b, 2)[i] = in(b, 0)[i] + in(b, 1)[i];
       }},
      // r[0] = the sum of n elements; extent 1.
      {"sum",
       [](void* const* b, const int64_t* sizes, char*, int64_t, int64_t) {
         float sum = 0;
         for (int64_t i = 0; i < sizes[0]; ++i) sum += in(b, 0)[i];
         out(b, 1)[0] = sum;
       }},
      // y = x, through the scratch: 4 bytes an element, of the whole range.
      {"through_scratch",
       [](void* const* b, const int64_t*, char* scratch, int64_t begin, int64_t end) {
         float* const held = reinterpret_cast<float*>(scratch);
         for (int64_t i = begin; i < end; ++i) held[i - begin] = in(b, 0)[i];
         for (int64_t i = begin; i < end; ++i) out(b, 1)[i] = held[i - begin];
       }},
      // y[i] = what the scratch holds before anything is written to it.
      {"show_scratch",
       [](void* const* b, const int64_t*, char* scratch, int64_t begin, int64_t end) {
         for (int64_t i = begin; i < end; ++i) out(b, 0)[i] = reinterpret_cast<float*>(scratch)[0];
       }},
      {"idle", [](void* const*, const int64_t*, char*, int64_t, int64_t) {}},
      {"fail",
       [](void* const*, const int64_t*, char*, int64_t begin, int64_t) {
         if (begin == 0) throw std::runtime_error("the kernel failed");
       }},
      // c[0] (bool) = i[0] (i64) + 1 < sizes[0].
      {"goes_on",
       [](void* const* b, const int64_t* sizes, char*, int64_t, int64_t) {
         static_cast<bool*>(b[1])[0] = static_cast<const int64_t*>(b[0])[0] + 1 < sizes[0];
       }},
      // y[i] = i
      {"count",
       [](void* const* b, const int64_t*, char*, int64_t begin, int64_t end) {
         for (int64_t i = begin; i < end; ++i) out(b, 0)[i] = static_cast<float>(i);
       }},
  };
  const auto found = kernels.find(name);
  FL_CHECK(found != kernels.end(), "no kernel {}", name);
  return found->second;
}

inline Executable load(std::string_view text, const RunOptions& options = {}, int32_t threads = 3) {
  program::Program program = program::parse_program(text, op::standard_ops());
  program::verify(program);
  return Executable(std::move(program), test_kernel, nullptr, std::make_shared<ThreadPool>(threads), options);
}

inline Tensor f32(Dims dims, std::initializer_list<double> values) { return Tensor::of(DType::F32, std::move(dims), values); }
inline Tensor i64(Dims dims, std::vector<int64_t> values) { return Tensor::of_ints(DType::I64, std::move(dims), values); }
inline Tensor counting(int64_t count) {
  Tensor tensor(DType::F32, {count});
  for (int64_t i = 0; i < count; ++i) tensor.as<float>()[i] = static_cast<float>(i);
  return tensor;
}
inline std::vector<double> values(const Tensor& tensor) {
  std::vector<double> values;
  for (int64_t i = 0; i < tensor.count(); ++i) values.push_back(tensor.at(i));
  return values;
}
inline std::vector<Tensor> run(const Executable& executable, std::initializer_list<Tensor> inputs) {
  return executable.run(std::span<const Tensor>(inputs.begin(), inputs.size()));
}

// The words of the error of type E that f throws.
template <class E, class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "no error";
}

#define EXPECT_HAS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << "in: " << (text)

}  // namespace fuseloom::run
