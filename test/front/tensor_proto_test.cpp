#include "front/onnx/tensor_proto.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "front/onnx/importer.h"
#include "fuseloom/error.h"
#include "graph/evaluate.h"
#include "support/onnx_writer.h"

namespace fuseloom::front::onnx {
namespace {

using namespace test;
namespace fs = std::filesystem;

Tensor load(const Message& message) {
  const std::string bytes = message.text();
  return TensorSource("t.pb", nullptr, false, "").load(parse_tensor(bytes, "t.pb"));
}

Message typed(int type, std::vector<int64_t> dims, int field, const std::vector<uint64_t>& values) {
  Message m;
  for (const int64_t d : dims) m.varint(1, static_cast<uint64_t>(d));
  m.varint(2, static_cast<uint64_t>(type));
  for (const uint64_t v : values) m.varint(field, v);
  return m;
}

TEST(TensorProto, TypedFields) {
  EXPECT_EQ(load(typed(onnx_type::kInt64, {2}, 7, {5, ~uint64_t{0}})).int_at(1), -1);
  EXPECT_EQ(load(typed(onnx_type::kUInt8, {1}, 5, {200})).int_at(0), 200);
  EXPECT_EQ(load(typed(onnx_type::kInt8, {1}, 5, {~uint64_t{0}})).int_at(0), -1);
  EXPECT_EQ(load(typed(onnx_type::kFloat16, {1}, 5, {0x3e00})).at(0), 1.5);  // bit patterns
  EXPECT_EQ(load(typed(onnx_type::kBFloat16, {1}, 5, {0x3fc0})).at(0), 1.5);
  EXPECT_EQ(load(typed(onnx_type::kBool, {1}, 5, {7})).as<uint8_t>()[0], 1);
  Message floats;
  floats.varint(1, 2).varint(2, onnx_type::kFloat).fixed32(4, 1.5f).fixed32(4, -2.0f);
  EXPECT_EQ(load(floats).at(1), -2.0);
}

TEST(TensorProto, SubByteIntegersUnpackLowNibbleFirst) {
  const Tensor raw = load(onnx_tensor("t", onnx_type::kInt4, {3}, std::string("\x8f\x07", 2)));
  EXPECT_EQ(raw.dtype(), DType::I8);
  EXPECT_EQ(raw.int_at(0), -1);
  EXPECT_EQ(raw.int_at(1), -8);
  EXPECT_EQ(raw.int_at(2), 7);
  const Tensor field = load(typed(onnx_type::kUInt4, {3}, 5, {0xf1, 0x02}));
  EXPECT_EQ(field.int_at(1), 15);
  EXPECT_EQ(field.int_at(2), 2);
}

TEST(TensorProto, EightBitFloats) {
  EXPECT_EQ(narrow_float_value(ElementType::Float8E4M3FN, 0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(narrow_float_value(ElementType::Float8E4M3FN, 0x7f)));
  EXPECT_EQ(narrow_float_value(ElementType::Float8E4M3FN, 0x01), std::ldexp(1.0f, -9));
  EXPECT_TRUE(std::isnan(narrow_float_value(ElementType::Float8E4M3FNUZ, 0x80)));
  EXPECT_EQ(narrow_float_value(ElementType::Float8E5M2, 0x7b), 57344.0f);
  EXPECT_TRUE(std::isinf(narrow_float_value(ElementType::Float8E5M2, 0xfc)));
  EXPECT_EQ(narrow_float_value(ElementType::Float4E2M1, 0x0f), -6.0f);
  EXPECT_EQ(narrow_float_value(ElementType::Float8E8M0, 128), 2.0f);
}

TEST(TensorProto, CountsMustFit) {
  EXPECT_THROW(load(onnx_tensor("t", onnx_type::kFloat, {2}, "1234567")), UserError);
  EXPECT_THROW(load(typed(onnx_type::kInt64, {2}, 7, {5})), UserError);
  EXPECT_THROW(load(onnx_tensor("t", onnx_type::kInt4, {3}, "1")), UserError);
  EXPECT_THROW(load(onnx_tensor("t", onnx_type::kFloat, {int64_t{1} << 62}, "")), UserError);
  EXPECT_EQ(load(onnx_tensor("t", onnx_type::kFloat, {0, 5}, "")).dims(), (Dims{0, 5}));
}

// ---- external data
// ---------------------------------------------------------------------------------------------------

class ExternalData : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "fuseloom_external_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    fs::create_directories(root_ / "model" / "data");
    write(root_ / "model" / "w.bin", raw_bytes(std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}));
    write(root_ / "outside.bin", raw_bytes(std::vector<float>{42, 42}));
  }
  void TearDown() override { fs::remove_all(root_); }

  static void write(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

  std::string import_with(const std::vector<std::pair<std::string, std::string>>& entries,
                          std::vector<double>* values = nullptr) {
    const OnnxGraph graph{.nodes = {onnx_node("Identity", {"w"}, {"y"})},
                          .outputs = {onnx_untyped("y")},
                          .initializers = {onnx_external("w", onnx_type::kFloat, {2}, entries)}};
    const fs::path path = root_ / "model" / "model.onnx";
    write(path, onnx_model(graph));
    try {
      const ImportedModel model = import_onnx(path.string());
      const Tensor y = graph::evaluate(model.graph, {})[0];
      if (values != nullptr) *values = {y.at(0), y.at(1)};
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }

  fs::path root_;
};

TEST_F(ExternalData, OffsetAndLength) {
  std::vector<double> values;
  EXPECT_EQ(import_with({{"location", "w.bin"}, {"offset", "8"}, {"length", "8"}}, &values), "");
  EXPECT_EQ(values, (std::vector<double>{2, 3}));
  EXPECT_EQ(import_with({{"location", "./w.bin"}, {"offset", "24"}}, &values), "");
  EXPECT_EQ(values, (std::vector<double>{6, 7}));
  write(root_ / "model" / "data" / "w2.bin", raw_bytes(std::vector<float>{8, 9}));
  EXPECT_EQ(import_with({{"location", "data/w2.bin"}}, &values), "");
  EXPECT_EQ(values, (std::vector<double>{8, 9}));
}

TEST_F(ExternalData, RangesOutsideOfTheFileAreErrors) {
  for (const auto& [offset, length] : std::vector<std::pair<std::string, std::string>>{{"28", "8"},
                                                                                       {"40", "0"},
                                                                                       {"0", "9223372036854775807"},
                                                                                       {"9223372036854775807", "8"},
                                                                                       {"-8", "8"},
                                                                                       {"x", "8"},
                                                                                       {"8", "4"}})
    EXPECT_NE(import_with({{"location", "w.bin"}, {"offset", offset}, {"length", length}}), "")
        << offset << " " << length;
}

TEST_F(ExternalData, NothingLeavesTheFolder) {
  fs::create_symlink(root_ / "outside.bin", root_ / "model" / "link.bin");
  fs::create_directory_symlink(root_, root_ / "model" / "up");
  fs::create_hard_link(root_ / "outside.bin", root_ / "model" / "hard.bin");
  ASSERT_EQ(mkfifo((root_ / "model" / "fifo").c_str(), 0600), 0);
  const std::vector<std::string> locations = {"../outside.bin", "data/../../outside.bin", (root_ / "outside.bin").string(), "link.bin", "up/outside.bin",
                                              "hard.bin", "data", "fifo", "missing.bin", "", ".", "..\\outside.bin"};
  for (const std::string& location : locations)
    EXPECT_NE(import_with({{"location", location}}), "") << location;
  EXPECT_NE(import_with({{"location", std::string("w.bin\0x", 7)}}), "");
  EXPECT_NE(import_with({}), "");
}

TEST_F(ExternalData, IsRefusedForAModelInMemory) {
  const OnnxGraph graph{.nodes = {onnx_node("Identity", {"w"}, {"y"})},
                        .outputs = {onnx_untyped("y")},
                        .initializers = {onnx_external("w", onnx_type::kFloat, {2}, {{"location", "w.bin"}})}};
  EXPECT_THROW(import_onnx_bytes(onnx_model(graph)), UserError);
}

// A sparse file above 4 GiB: mapped, not read.
TEST_F(ExternalData, OffsetAbove4GiB) {
  const int64_t offset = (int64_t{5} << 30) + 64;
  const int fd = open((root_ / "model" / "big.bin").c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_GE(fd, 0);
  const std::vector<float> tail = {12, 13};
  if (pwrite(fd, tail.data(), 8, offset) != 8) GTEST_SKIP() << "the file system has no sparse files of 5 GiB";
  close(fd);
  std::vector<double> values;
  EXPECT_EQ(import_with({{"location", "big.bin"}, {"offset", std::to_string(offset)}, {"length", "8"}}, &values), "");
  EXPECT_EQ(values, (std::vector<double>{12, 13}));
}

}  // namespace
}  // namespace fuseloom::front::onnx
