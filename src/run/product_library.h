// A library of matrix products on a CUDA device: cuBLASLt, found with dlopen. Nothing of CUDA is needed to build: the few
// declarations of cublasLt.h that are used are in product_library.cpp, with numbers that NVIDIA keeps stable.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fuseloom/dtype.h"
#include "program/program.h"
#include "run/cuda_driver.h"

namespace fuseloom::run {

// A program::MatrixProduct of known sizes. Strides are in elements.
struct ProductSizes {
  struct Operand {
    int64_t batch_stride = 0, row_stride = 0, column_stride = 0;
    int32_t alignment = 16;              // of its first element, in bytes
  };
  DType dtype = DType::F32;
  int64_t batch = 1, rows = 1, columns = 1, depth = 1;
  Operand left, right, result;
  bool bias = false;
  program::Activation activation = program::Activation::None;
  bool tf32 = false;                     // f32 operands may be rounded to 10 bits of mantissa
  int64_t workspace_bytes = 0;           // there are so many
};

class ProductLibrary {
 public:
  // The first of the files that can be loaded and starts on the current device. Throws Unsupported, which says why none does.
  static std::shared_ptr<const ProductLibrary> load(const std::vector<std::string>& files = usual_files());
  static std::vector<std::string> usual_files();
  ~ProductLibrary();
  const std::string& description() const { return description_; }   // "cuBLASLt 13.1.0 (libcublasLt.so.13)"

  // How the library does a product. Immutable: any number of threads may run it.
  struct Plan;
  // Up to `count` ways, the one it holds for the fastest first. Empty, with the reason in words: the library refuses.
  std::vector<std::shared_ptr<const Plan>> plans(const ProductSizes& sizes, int32_t count, std::string& reason) const;
  // The first of them. What was chosen for sizes of the same class (see .cpp) is taken again when the library agrees.
  std::shared_ptr<const Plan> plan(const ProductSizes& sizes, std::string& reason) const;

  struct Pointers {
    const void *left = nullptr, *right = nullptr, *bias = nullptr;
    void *result = nullptr, *workspace = nullptr;
  };
  // Asynchronous. Throws InternalError when the library cannot.
  void run(const Plan& plan, const Pointers& at, CudaStream stream) const;

 private:
  struct Functions;
  using Class = std::array<int64_t, 14>;
  struct Algorithm {
    uint64_t words[8];
  };
  ProductLibrary(std::shared_ptr<const Functions> functions, void* handle, std::string description)
      : functions_(std::move(functions)), handle_(handle), description_(std::move(description)) {}
  static int make_product(const Functions& functions, const ProductSizes& sizes, const void* bias, void** product);
  static Class class_of(const ProductSizes& sizes);
  std::shared_ptr<Plan> describe(const ProductSizes& sizes, std::string& reason) const;

  const std::shared_ptr<const Functions> functions_;
  void* const handle_;
  const std::string description_;
  mutable std::mutex mutex_;              // guards what follows
  mutable std::map<Class, Algorithm> chosen_;
};

}  // namespace fuseloom::run
