#include "front/onnx/backend_test.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "fuseloom/error.h"
#include "graph/evaluate.h"
#include "support/onnx_writer.h"

namespace fuseloom::front::onnx {
namespace {

using namespace test;
namespace fs = std::filesystem;

class BackendTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "fuseloom_backend_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  // y = op(x) for x = {1, -2}.
  std::string add_test(const std::string& name, const std::string& op, const std::vector<float>& expected) {
    const fs::path folder = root_ / name, data = folder / "test_data_set_0";
    fs::create_directories(data);
    const auto write = [](const fs::path& path, const std::string& bytes) {
      std::ofstream(path, std::ios::binary) << bytes;
    };
    write(folder / "model.onnx", onnx_model({.nodes = {onnx_node(op, {"x"}, {"y"})},
                                             .inputs = {onnx_value("x", onnx_type::kFloat, {int64_t{2}})},
                                             .outputs = {onnx_value("y", onnx_type::kFloat, {int64_t{2}})}}));
    write(data / "input_0.pb", onnx_floats("x", {2}, {1, -2}).text());
    write(data / "output_0.pb", onnx_floats("y", {static_cast<int64_t>(expected.size())}, expected).text());
    return folder.string();
  }

  BackendTestOptions options() const {
    BackendTestOptions options;
    options.memory_bytes = 0;  // a sanitizer's shadow memory is larger than any sensible limit
    return options;
  }

  fs::path root_;
};

TEST_F(BackendTest, Statuses) {
  EXPECT_EQ(run_backend_test(add_test("a", "Relu", {1, 0}), options()).status, BackendTestStatus::Passed);
  const BackendTestResult failed = run_backend_test(add_test("b", "Relu", {1, -2}), options());
  EXPECT_EQ(failed.status, BackendTestStatus::Failed);
  EXPECT_NE(failed.reason.find("first at 1: 0 instead of -2"), std::string::npos) << failed.reason;
  EXPECT_EQ(run_backend_test(add_test("c", "Relu", {1}), options()).status, BackendTestStatus::Failed);
  const BackendTestResult unsupported = run_backend_test(add_test("d", "Frobnicate", {1, 0}), options());
  EXPECT_EQ(unsupported.status, BackendTestStatus::Unsupported);
  EXPECT_NE(unsupported.reason.find("Frobnicate"), std::string::npos);
}

TEST_F(BackendTest, ACrashIsAResult) {
  BackendTestOptions crashing = options();
  crashing.executor = [](const graph::Graph&, std::span<const Tensor>) -> std::vector<Tensor> {
    signal(SIGTERM, SIG_DFL);
    raise(SIGTERM);
    return {};
  };
  const BackendTestResult result = run_backend_test(add_test("a", "Relu", {1, 0}), crashing);
  EXPECT_EQ(result.status, BackendTestStatus::Crashed);
  EXPECT_NE(result.reason.find("signal 15"), std::string::npos) << result.reason;
}

TEST_F(BackendTest, AHangIsAResult) {
  BackendTestOptions hanging = options();
  hanging.timeout_seconds = 0.2;
  hanging.executor = [](const graph::Graph&, std::span<const Tensor>) -> std::vector<Tensor> {
    while (true) pause();
  };
  EXPECT_EQ(run_backend_test(add_test("a", "Relu", {1, 0}), hanging).status, BackendTestStatus::Crashed);
}

TEST_F(BackendTest, FindsTestsInNameOrder) {
  add_test("suite/b", "Relu", {1, 0});
  add_test("suite/a", "Relu", {1, 0});
  const std::vector<std::string> tests = find_backend_tests(root_.string());
  ASSERT_EQ(tests.size(), 2u);
  EXPECT_TRUE(tests[0].ends_with("suite/a"));
  EXPECT_EQ(find_backend_tests((root_ / "suite" / "b").string()).size(), 1u);
  EXPECT_THROW(find_backend_tests((root_ / "suite" / "b" / "test_data_set_0").string()), UserError);
}

TEST(CompareTensors, ToleranceAndSpecialValues) {
  const BackendTestOptions options;
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const auto f = [](std::initializer_list<double> v) {
    return Tensor::of(DType::F32, {static_cast<int64_t>(v.size())}, v);
  };
  EXPECT_EQ(compare_tensors(f({1.0005, nan, inf}), f({1, nan, inf}), options), "");
  EXPECT_NE(compare_tensors(f({1.002}), f({1}), options), "");
  EXPECT_NE(compare_tensors(f({nan}), f({1}), options), "");
  EXPECT_NE(compare_tensors(f({inf}), f({-inf}), options), "");
  EXPECT_NE(compare_tensors(f({1}), Tensor::of(DType::F64, {1}, {1}), options), "");
  EXPECT_NE(compare_tensors(f({1}), Tensor::of(DType::F32, {}, {1}), options), "");
}

}  // namespace
}  // namespace fuseloom::front::onnx
