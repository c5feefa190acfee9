#include "front/onnx/proto.h"

#include <gtest/gtest.h>

#include <random>

#include "fuseloom/error.h"
#include "support/onnx_writer.h"

namespace fuseloom::front::onnx {
namespace {

using test::Message;

std::string small_model() {
  return test::onnx_model({.nodes = {test::onnx_node("Add", {"x", "w"}, {"t"}, {}, "add"),
                                     test::onnx_node("Softmax", {"t"}, {"y"}, {test::attr_int("axis", -1)}, "soft")},
                           .inputs = {test::onnx_value("x", 1, {"batch", int64_t{3}})},
                           .outputs = {test::onnx_value("y", 1, {"batch", int64_t{3}})},
                           .initializers = {test::onnx_floats("w", {3}, {1, 2, 3})}});
}

std::string error_of(std::string_view bytes) {
  try {
    parse_model(bytes, "m.onnx");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Proto, ReadsAModel) {
  const std::string bytes = small_model();
  const ModelProto model = parse_model(bytes, "m.onnx");
  ASSERT_EQ(model.graph.nodes.size(), 2u);
  EXPECT_EQ(model.graph.nodes[1].op_type, "Softmax");
  EXPECT_EQ(model.graph.nodes[1].attributes[0].i, -1);
  EXPECT_EQ(model.graph.nodes[0].inputs, (std::vector<std::string_view>{"x", "w"}));
  EXPECT_EQ(model.opsets[0].version, 17);
  ASSERT_EQ(model.graph.inputs[0].type.shape.size(), 2u);
  EXPECT_EQ(model.graph.inputs[0].type.shape[0].parameter, "batch");
  EXPECT_EQ(model.graph.inputs[0].type.shape[1].value, 3);
  EXPECT_EQ(model.graph.initializers[0].raw.size(), 12u);
  // Zero-copy: the weights are views into the file.
  EXPECT_GE(model.graph.initializers[0].raw.data(), bytes.data());
  EXPECT_LT(model.graph.initializers[0].raw.data(), bytes.data() + bytes.size());
}

TEST(Proto, PackedAndUnpackedNumbersAreTheSame) {
  Message packed, unpacked;
  Message ints, floats;
  for (const uint64_t v : {uint64_t{1}, uint64_t{300}, ~uint64_t{0}}) ints.raw_varint(v);
  packed.bytes(1, "a").bytes(8, ints.text());
  unpacked.bytes(1, "a").varint(8, 1).varint(8, 300).varint(8, ~uint64_t{0});
  for (const Message& attribute : {packed, unpacked}) {
    const std::string bytes = test::onnx_model({.nodes = {test::onnx_node("Op", {}, {}, {attribute})}});
    const ModelProto model = parse_model(bytes, "m");
    EXPECT_EQ(model.graph.nodes[0].attributes[0].ints, (std::vector<int64_t>{1, 300, -1}));
    EXPECT_EQ(model.graph.nodes[0].attributes[0].type, AttributeProto::Type::Ints);
  }
}

// A cut file is either an error or (cut between fields) a shorter file; never a crash.
TEST(Proto, CutAtEveryByte) {
  const std::string bytes = small_model();
  int errors = 0;
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string cut = bytes.substr(0, size);  // a copy, so that a sanitizer sees reads past the end
    errors += !error_of(cut).empty();
  }
  EXPECT_GT(errors, static_cast<int>(bytes.size()) * 9 / 10);
}

TEST(Proto, BitFlips) {
  const std::string bytes = small_model();
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    error_of(flipped);
  }
}

TEST(Proto, RandomBytes) {
  const unsigned seed = 20260;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(random() % 200, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    error_of(bytes);
  }
}

TEST(Proto, HugeLengthsAreErrors) {
  for (const uint64_t length :
       {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1} << 32, (uint64_t{1} << 32) + 1, uint64_t{100}}) {
    Message m;
    m.raw_varint(7 << 3 | 2);  // the graph
    m.raw_varint(length);
    m.raw("x");
    EXPECT_NE(error_of(m.text()).find("field 7 claims"), std::string::npos) << length;
  }
}

TEST(Proto, OverlongVarintIsAnError) {
  EXPECT_NE(error_of(std::string("\x08") + std::string(11, '\xff')).find("too long"), std::string::npos);
}

TEST(Proto, GroupsAndFieldZeroAreErrors) {
  EXPECT_NE(error_of("\x3b").find("wire type 3"), std::string::npos);
  EXPECT_NE(error_of(std::string("\x02\x00", 2)).find("field number 0"), std::string::npos);
}

TEST(Proto, WrongWireTypeIsAnError) {
  EXPECT_NE(error_of(Message().varint(7, 1).text()).find("where bytes was expected"), std::string::npos);
}

// graph → node → attribute → graph → ... , written from the inside out.
TEST(Proto, DeepNestingIsAnError) {
  std::string inner;
  for (int i = 0; i < 3000; ++i) inner = Message().bytes(i % 3 == 2 ? 1 : i % 3 == 1 ? 5 : 6, inner).text();
  EXPECT_NE(error_of(Message().bytes(7, inner).text()).find("nested deeper"), std::string::npos);
}

TEST(Proto, TooManyMessagesAreAnError) {
  std::string bytes;
  for (int i = 0; i < (1 << 21) + 1; ++i) bytes += std::string_view("\x42\x00", 2);  // empty opset imports
  EXPECT_NE(error_of(bytes).find("more than"), std::string::npos);
}

TEST(Proto, NoGraphIsAnError) { EXPECT_NE(error_of("").find("has no graph"), std::string::npos); }

}  // namespace
}  // namespace fuseloom::front::onnx
