#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "front/onnx/backend_test.h"
#include "progress.h"
#include "verbs.h"

namespace fuseloom::tool {

int onnx_test(const OnnxTestArguments& arguments) {
  namespace onnx = front::onnx;
  FL_REQUIRE(arguments.executor == "compiled" || arguments.executor == "oracle", "--executor {}: expected compiled or oracle", arguments.executor);
  onnx::BackendTestOptions options{.relative_tolerance = arguments.relative_tolerance,
                                   .absolute_tolerance = arguments.absolute_tolerance,
                                   .absolute_of_largest = arguments.absolute_of_largest,
                                   .timeout_seconds = arguments.timeout};
  if (arguments.executor == "compiled") {
    options.executor = [&](const graph::Graph& graph, std::span<const Tensor> inputs) {
      compile::Options compile_options{.threads = 1};
      if (arguments.has_cache_dir) compile_options.cache_dir = arguments.cache_dir;
      return compile::compile(graph.clone(), compile_options).executable->run(inputs);
    };
  }
  std::vector<std::string> folders;
  for (std::string& folder : onnx::find_backend_tests(arguments.path))
    if (std::filesystem::path(folder).filename().string().find(arguments.filter) != std::string::npos) folders.push_back(std::move(folder));
  FL_REQUIRE(!folders.empty(), "{}: no test has '{}' in its name", arguments.path, arguments.filter);

  Progress progress;
  size_t passed = 0, failed = 0, unsupported = 0, crashed = 0;
  nlohmann::ordered_json tests = nlohmann::ordered_json::array();
  for (size_t i = 0; i < folders.size(); ++i) {
    progress.show(fmt::format("{}/{}  passed {} failed {} unsupported {} crashed {}  {}", i + 1, folders.size(), passed, failed, unsupported,
                              crashed, std::filesystem::path(folders[i]).filename().string()));
    const onnx::BackendTestResult result = onnx::run_backend_test(folders[i], options);
    switch (result.status) {
      case onnx::BackendTestStatus::Passed: ++passed; break;
      case onnx::BackendTestStatus::Failed: ++failed; break;
      case onnx::BackendTestStatus::Unsupported: ++unsupported; break;
      case onnx::BackendTestStatus::Crashed: ++crashed; break;
    }
    tests.push_back({{"name", result.name}, {"status", onnx::to_string(result.status)}, {"reason", result.reason}});
    if (!arguments.json && (arguments.verbose || result.status != onnx::BackendTestStatus::Passed)) {
      progress.clear();
      fmt::print("{:<12} {}  {}\n", onnx::to_string(result.status), result.name, result.reason);
    }
  }
  progress.clear();
  if (arguments.json) {
    fmt::print("{}\n", nlohmann::ordered_json({{"passed", passed}, {"failed", failed}, {"unsupported", unsupported}, {"crashed", crashed},
                                               {"executor", arguments.executor}, {"tests", std::move(tests)}}).dump());
  } else {
    fmt::print("{} passed, {} failed, {} unsupported, {} crashed\n", passed, failed, unsupported, crashed);
  }
  return failed + crashed > 0 ? kMismatch : kOk;
}

}  // namespace fuseloom::tool
