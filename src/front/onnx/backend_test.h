// Runs ONNX's backend tests: folders with model.onnx and test_data_set_N/{input,output}_K.pb.
//
// Each test runs in a child process with limits on time and memory, so that a crash or a hang is a result like any
// other.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "front/onnx/importer.h"

namespace fuseloom::front::onnx {

// Runs a graph on inputs in the order of graph.inputs().
using Executor = std::function<std::vector<Tensor>(const graph::Graph&, std::span<const Tensor>)>;

struct BackendTestOptions {
  Executor executor;                 // default: graph::evaluate, the oracle
  double relative_tolerance = 1e-3;  // |got - expected| <= absolute + relative * |expected|
  double absolute_tolerance = 1e-7;
  // When positive, the absolute tolerance is this times the largest finite magnitude of the expected tensor: for models
  // compared with another framework.
  double absolute_of_largest = 0;
  double timeout_seconds = 60;
  int64_t memory_bytes = int64_t{8} << 30;  // of address space; 0: no limit (sanitizers reserve terabytes)
  bool fork = true;                         // false: in this process, for debugging
};

enum class BackendTestStatus : uint8_t { Passed, Failed, Unsupported, Crashed };
std::string_view to_string(BackendTestStatus status);

struct BackendTestResult {
  std::string name;
  BackendTestStatus status = BackendTestStatus::Passed;
  std::string reason;  // "" when passed
};

// The test folders under `path`: itself, its children, or theirs; in name order. Throws UserError when there are none.
std::vector<std::string> find_backend_tests(const std::string& path);
BackendTestResult run_backend_test(const std::string& folder, const BackendTestOptions& options = {});

// Words for the first difference, "" when there is none: dtype and shape exact, NaN equals NaN.
std::string compare_tensors(const Tensor& got, const Tensor& expected, const BackendTestOptions& options);

}  // namespace fuseloom::front::onnx
