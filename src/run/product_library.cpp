#include "run/product_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <set>

#include "base/check.h"

namespace fuseloom::run {

// ---- cublasLt.h, as far as it is used --------------------------------------------------------------------------------

namespace {

using Status = int;
constexpr Status kSuccess = 0;

enum DataType : int32_t { kF32 = 0, kF16 = 2, kBf16 = 14 };
enum ComputeType : int32_t { kCompute32 = 68, kComputeTf32 = 77 };
enum Operation : int32_t { kAsItIs = 0, kTransposed = 1 };
enum Epilogue : uint32_t { kPlain = 1, kRelu = 2, kBias = 4, kGelu = 32 };
enum ProductAttribute : int { kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8 };
enum LayoutAttribute : int { kBatchCount = 5, kBatchStride = 6 };
enum PreferenceAttribute : int { kMostWorkspace = 1, kAlignmentA = 5, kAlignmentB = 6, kAlignmentC = 7, kAlignmentD = 8 };

struct HeuristicResult {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

const char* words_of(Status status) {
  switch (status) {
    case 1: return "not initialised";
    case 3: return "allocation failed";
    case 7: return "invalid value";
    case 8: return "the device's architecture is not supported";
    case 13: return "execution failed";
    case 14: return "internal error";
    case 15: return "not supported";
    default: return "unknown status";
  }
}

}  // namespace

struct ProductLibrary::Functions {
  Status (*create)(void** handle);
  Status (*destroy)(void* handle);
  size_t (*version)();
  Status (*create_product)(void** product, int compute_type, int scale_type);
  Status (*destroy_product)(void* product);
  Status (*set_product)(void* product, int attribute, const void* value, size_t bytes);
  Status (*create_layout)(void** layout, int type, uint64_t rows, uint64_t columns, int64_t leading_dimension);
  Status (*destroy_layout)(void* layout);
  Status (*set_layout)(void* layout, int attribute, const void* value, size_t bytes);
  Status (*create_preference)(void** preference);
  Status (*destroy_preference)(void* preference);
  Status (*set_preference)(void* preference, int attribute, const void* value, size_t bytes);
  Status (*heuristic)(void* handle, void* product, void* a, void* b, void* c, void* d, void* preference, int requested, HeuristicResult* results, int* returned);
  Status (*check)(void* handle, void* product, void* a, void* b, void* c, void* d, const uint64_t* algorithm, HeuristicResult* result);
  Status (*run)(void* handle, void* product, const void* alpha, const void* a, void* a_layout, const void* b, void* b_layout, const void* beta, const void* c,
                void* c_layout, void* d, void* d_layout, const uint64_t* algorithm, void* workspace, size_t workspace_bytes, CudaStream stream);
};

// The library's matrices lie column by column. Ours, row by row, are their transposes there, so that it is asked for
//     result^T = right^T left^T:     its A is our right operand, its B our left one, its rows our columns.
struct ProductLibrary::Plan {
  std::shared_ptr<const Functions> functions;
  ProductSizes sizes;
  void *product = nullptr, *a = nullptr, *b = nullptr, *d = nullptr;
  uint64_t algorithm[8] = {};
  size_t workspace_bytes = 0;

  Plan() = default;
  Plan(const Plan&) = delete;
  ~Plan() {
    if (product != nullptr) functions->destroy_product(product);
    for (void* const layout : {a, b, d}) {
      if (layout != nullptr) functions->destroy_layout(layout);
    }
  }
};

namespace {

// What the library calls a matrix of ours: its transpose, or, when our columns lie apart and our rows together, the
// transpose of that.
struct Layout {
  bool transposed = false;
  int64_t leading_dimension = 0;
};

Layout layout_of(const ProductSizes::Operand& operand) {
  if (operand.column_stride == 1) return {false, operand.row_stride};
  return {true, operand.column_stride};
}

int data_type(DType dtype) { return dtype == DType::F16 ? kF16 : dtype == DType::BF16 ? kBf16 : kF32; }

}  // namespace

std::vector<std::string> ProductLibrary::usual_files() {
  std::vector<std::string> files;
  constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    const char* const root = std::getenv(variable);
    if (root == nullptr || *root == 0) continue;
    for (const char* directory : {"lib64", "lib"}) {
      for (const char* name : kNames) files.push_back(fmt::format("{}/{}/{}", root, directory, name));
    }
  }
  for (const char* name : kNames) files.push_back(fmt::format("/usr/local/cuda/lib64/{}", name));
  files.insert(files.end(), std::begin(kNames), std::end(kNames));
  return files;
}

std::shared_ptr<const ProductLibrary> ProductLibrary::load(const std::vector<std::string>& files) {
  std::string reasons;
  std::set<void*> tried;
  const auto note = [&](const std::string& reason) { reasons += (reasons.empty() ? "" : "; ") + reason; };
  for (const std::string& file : files) {
    void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    // One file under several names is tried once.
    if (library == nullptr || !tried.insert(library).second) continue;
    auto functions = std::make_shared<Functions>();
    std::string missing;
    const auto bind = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr && missing.empty()) missing = name;
    };
    bind(functions->create, "cublasLtCreate");
    bind(functions->destroy, "cublasLtDestroy");
    bind(functions->version, "cublasLtGetVersion");
    bind(functions->create_product, "cublasLtMatmulDescCreate");
    bind(functions->destroy_product, "cublasLtMatmulDescDestroy");
    bind(functions->set_product, "cublasLtMatmulDescSetAttribute");
    bind(functions->create_layout, "cublasLtMatrixLayoutCreate");
    bind(functions->destroy_layout, "cublasLtMatrixLayoutDestroy");
    bind(functions->set_layout, "cublasLtMatrixLayoutSetAttribute");
    bind(functions->create_preference, "cublasLtMatmulPreferenceCreate");
    bind(functions->destroy_preference, "cublasLtMatmulPreferenceDestroy");
    bind(functions->set_preference, "cublasLtMatmulPreferenceSetAttribute");
    bind(functions->heuristic, "cublasLtMatmulAlgoGetHeuristic");
    bind(functions->check, "cublasLtMatmulAlgoCheck");
    bind(functions->run, "cublasLtMatmul");
    if (!missing.empty()) {
      note(fmt::format("{} has no {}", file, missing));
      continue;
    }
    void* handle = nullptr;
    const Status started = functions->create(&handle);
    if (started != kSuccess) {
      note(fmt::format("{} does not start: {} ({})", file, words_of(started), started));
      continue;
    }
    const size_t version = functions->version();
    return std::shared_ptr<const ProductLibrary>(
        new ProductLibrary(functions, handle, fmt::format("cuBLASLt {}.{}.{} ({})", version / 10000, version % 10000 / 100, version % 100, file)));
  }
  throw Unsupported(reasons.empty() ? fmt::format("cuBLASLt is not installed: none of {} can be loaded", fmt::join(files, ", ")) : reasons);
}

// `bias`: its address, where there is one.
int ProductLibrary::make_product(const Functions& functions, const ProductSizes& sizes, const void* bias, void** product) {
  const bool tf32 = sizes.dtype == DType::F32 && sizes.tf32;
  const int32_t a = layout_of(sizes.right).transposed ? kTransposed : kAsItIs, b = layout_of(sizes.left).transposed ? kTransposed : kAsItIs;
  uint32_t epilogue = sizes.activation == program::Activation::Relu ? kRelu : sizes.activation == program::Activation::GeluTanh ? kGelu : sizes.bias ? 0 : kPlain;
  if (sizes.bias) epilogue |= kBias;
  Status status = functions.create_product(product, tf32 ? kComputeTf32 : kCompute32, kF32);
  const auto set = [&](int attribute, const auto& value) {
    if (status == kSuccess) status = functions.set_product(*product, attribute, &value, sizeof(value));
  };
  set(kTransposeA, a);
  set(kTransposeB, b);
  set(kEpilogue, epilogue);
  if (sizes.bias) set(kBiasPointer, bias);
  return status;
}

ProductLibrary::~ProductLibrary() { functions_->destroy(handle_); }

// Sizes of one class: what the choice of an algorithm depends on most. Rows and batch, which change from call to call, count
// by their magnitude, four steps to a factor of two; columns, depth and how matrices lie, which the model fixes, by themselves.
ProductLibrary::Class ProductLibrary::class_of(const ProductSizes& sizes) {
  const auto magnitude = [](int64_t size) {
    const auto value = static_cast<uint64_t>(std::max<int64_t>(size, 1));
    const int bits = std::bit_width(value);
    return bits <= 3 ? size : int64_t{bits} * 4 + static_cast<int64_t>(value >> (bits - 3) & 3);
  };
  const auto spacing = [&](const ProductSizes::Operand& operand) {
    const Layout layout = layout_of(operand);
    const int64_t together = layout.leading_dimension | operand.batch_stride | 16;
    return int64_t{layout.transposed} + 2 * (together & -together) + 64 * operand.alignment;
  };
  return {static_cast<int64_t>(sizes.dtype), sizes.batch == 1 ? 0 : magnitude(sizes.batch), magnitude(sizes.rows), sizes.columns, sizes.depth,
          spacing(sizes.left), spacing(sizes.right), spacing(sizes.result), sizes.left.batch_stride == 0, sizes.right.batch_stride == 0,
          sizes.bias, static_cast<int64_t>(sizes.activation), sizes.tf32, sizes.workspace_bytes};
}

std::shared_ptr<ProductLibrary::Plan> ProductLibrary::describe(const ProductSizes& sizes, std::string& reason) const {
  auto plan = std::make_shared<Plan>();
  plan->functions = functions_;
  plan->sizes = sizes;
  const auto good = [&](Status status, const char* what) {
    if (status != kSuccess && reason.empty()) reason = fmt::format("it does not take the {}: {} ({})", what, words_of(status), status);
    return status == kSuccess;
  };
  // An address of the alignment that a bias has at least.
  if (!good(make_product(*functions_, sizes, reinterpret_cast<const void*>(uintptr_t{16}), &plan->product), "kind of product")) return nullptr;
  const auto add_layout = [&](void*& layout, const ProductSizes::Operand& operand, int64_t rows, int64_t columns, const char* what) {
    const Layout as = layout_of(operand);
    // Ours is rows x columns; there, what lies together is a column.
    const int64_t together = as.transposed ? rows : columns, apart = as.transposed ? columns : rows;
    if (operand.column_stride != 1 && operand.row_stride != 1) {
      reason = fmt::format("the {} is contiguous along neither axis", what);
      return false;
    }
    // The distance of one column to the next does not matter when there is one.
    const int64_t leading = apart == 1 ? std::max(as.leading_dimension, together) : as.leading_dimension;
    if (leading < together) {
      reason = fmt::format("the {} overlaps itself: {} elements, the next {} further", what, together, leading);
      return false;
    }
    if (!good(functions_->create_layout(&layout, data_type(sizes.dtype), static_cast<uint64_t>(together), static_cast<uint64_t>(apart), leading), what)) return false;
    if (sizes.batch == 1) return true;
    const auto count = static_cast<int32_t>(sizes.batch);
    return good(functions_->set_layout(layout, kBatchCount, &count, sizeof(count)), what) &&
           good(functions_->set_layout(layout, kBatchStride, &operand.batch_stride, sizeof(operand.batch_stride)), what);
  };
  if (sizes.batch > INT32_MAX) {
    reason = fmt::format("{} products at once", sizes.batch);
    return nullptr;
  }
  if (!add_layout(plan->a, sizes.right, sizes.depth, sizes.columns, "right operand") ||
      !add_layout(plan->b, sizes.left, sizes.rows, sizes.depth, "left operand") || !add_layout(plan->d, sizes.result, sizes.rows, sizes.columns, "result")) {
    return nullptr;
  }
  return plan;
}

std::vector<std::shared_ptr<const ProductLibrary::Plan>> ProductLibrary::plans(const ProductSizes& sizes, int32_t count, std::string& reason) const {
  const std::shared_ptr<Plan> first = describe(sizes, reason);
  if (first == nullptr) return {};
  void* preference = nullptr;
  if (functions_->create_preference(&preference) != kSuccess) {
    reason = "it makes no preference";
    return {};
  }
  const std::unique_ptr<void, Status (*)(void*)> owner(preference, functions_->destroy_preference);
  const auto prefer = [&](int attribute, const auto& value) { functions_->set_preference(preference, attribute, &value, sizeof(value)); };
  prefer(kMostWorkspace, static_cast<uint64_t>(sizes.workspace_bytes));
  prefer(kAlignmentA, static_cast<uint32_t>(sizes.right.alignment));
  prefer(kAlignmentB, static_cast<uint32_t>(sizes.left.alignment));
  prefer(kAlignmentC, static_cast<uint32_t>(sizes.result.alignment));
  prefer(kAlignmentD, static_cast<uint32_t>(sizes.result.alignment));
  std::vector<HeuristicResult> results(static_cast<size_t>(count));
  int found = 0;
  const Status asked = functions_->heuristic(handle_, first->product, first->a, first->b, first->d, first->d, preference, count, results.data(), &found);
  std::vector<std::shared_ptr<const Plan>> plans;
  for (int i = 0; asked == kSuccess && i < found; ++i) {
    const HeuristicResult& result = results[static_cast<size_t>(i)];
    if (result.state != kSuccess || result.workspace_bytes > static_cast<size_t>(sizes.workspace_bytes)) continue;
    const std::shared_ptr<Plan> plan = plans.empty() ? first : describe(sizes, reason);
    if (plan == nullptr) break;
    std::copy(std::begin(result.algorithm), std::end(result.algorithm), plan->algorithm);
    plan->workspace_bytes = result.workspace_bytes;
    plans.push_back(plan);
  }
  if (plans.empty()) reason = fmt::format("it has no algorithm: {} ({})", asked == kSuccess ? "none found" : words_of(asked), asked);
  return plans;
}

std::shared_ptr<const ProductLibrary::Plan> ProductLibrary::plan(const ProductSizes& sizes, std::string& reason) const {
  const Class of = class_of(sizes);
  {
    std::unique_lock lock(mutex_);
    const auto known = chosen_.find(of);
    if (known != chosen_.end()) {
      const Algorithm algorithm = known->second;
      lock.unlock();
      const std::shared_ptr<Plan> plan = describe(sizes, reason);
      if (plan == nullptr) return nullptr;
      HeuristicResult result = {};
      const Status agreed = functions_->check(handle_, plan->product, plan->a, plan->b, plan->d, plan->d, algorithm.words, &result);
      if (agreed == kSuccess && result.workspace_bytes <= static_cast<size_t>(sizes.workspace_bytes)) {
        std::copy(std::begin(algorithm.words), std::end(algorithm.words), plan->algorithm);
        plan->workspace_bytes = result.workspace_bytes;
        return plan;
      }
    }
  }
  const std::vector<std::shared_ptr<const Plan>> found = plans(sizes, 1, reason);
  if (found.empty()) return nullptr;
  Algorithm algorithm;
  std::copy(std::begin(found[0]->algorithm), std::end(found[0]->algorithm), algorithm.words);
  const std::lock_guard lock(mutex_);
  chosen_.insert_or_assign(of, algorithm);
  return found[0];
}

void ProductLibrary::run(const Plan& plan, const Pointers& at, CudaStream stream) const {
  void* product = plan.product;
  std::unique_ptr<void, Status (*)(void*)> own(nullptr, functions_->destroy_product);
  const auto require = [&](Status status, const char* what) {
    FL_CHECK(status == kSuccess, "{} cannot {} a product of {} x ({} x {}) and ({} x {}) {}: {} ({})", description_, what, plan.sizes.batch, plan.sizes.rows,
             plan.sizes.depth, plan.sizes.depth, plan.sizes.columns, dtype_name(plan.sizes.dtype), words_of(status), status);
  };
  if (plan.sizes.bias) {
    // The bias' address belongs to the description, which threads share: a call has one of its own.
    require(make_product(*functions_, plan.sizes, at.bias, &product), "describe");
    own.reset(product);
  }
  const float one = 1, zero = 0;
  require(functions_->run(handle_, product, &one, at.right, plan.a, at.left, plan.b, &zero, at.result, plan.d, at.result, plan.d, plan.algorithm,
                          plan.workspace_bytes > 0 ? at.workspace : nullptr, plan.workspace_bytes, stream),
          "compute");
}

}  // namespace fuseloom::run
