// Writes ONNX files for tests: a few lines of protobuf, independent of the reader under test.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace fuseloom::test {

// One protobuf message under construction.
class Message {
 public:
  Message& varint(int field, uint64_t value) {
    key(field, 0);
    raw_varint(value);
    return *this;
  }
  Message& bytes(int field, std::string_view value) {
    key(field, 2);
    raw_varint(value.size());
    text_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return bytes(field, value.text_); }
  Message& fixed32(int field, float value) {
    key(field, 5);
    char raw[4];
    std::memcpy(raw, &value, 4);
    text_.append(raw, 4);
    return *this;
  }
  void raw_varint(uint64_t value) {
    while (value >= 0x80) {
      text_ += static_cast<char>(value | 0x80);
      value >>= 7;
    }
    text_ += static_cast<char>(value);
  }
  Message& raw(std::string_view bytes) {
    text_ += bytes;
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  void key(int field, int type) { raw_varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type)); }
  std::string text_;
};

// TensorProto.DataType, as far as the tests use it.
namespace onnx_type {
inline constexpr int kFloat = 1, kUInt8 = 2, kInt8 = 3, kInt32 = 6, kInt64 = 7, kString = 8, kBool = 9, kFloat16 = 10,
                     kDouble = 11, kBFloat16 = 16, kFloat8E4M3FN = 17, kUInt4 = 21, kInt4 = 22;
}

template <class T>
std::string raw_bytes(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

inline Message onnx_tensor(std::string_view name, int type, const std::vector<int64_t>& dims, std::string_view raw) {
  Message m;
  for (const int64_t d : dims) m.varint(1, static_cast<uint64_t>(d));
  return m.varint(2, static_cast<uint64_t>(type)).bytes(8, name).bytes(9, raw);
}
inline Message onnx_floats(std::string_view name, const std::vector<int64_t>& dims, const std::vector<float>& values) {
  return onnx_tensor(name, onnx_type::kFloat, dims, raw_bytes(values));
}
inline Message onnx_ints(std::string_view name, const std::vector<int64_t>& dims, const std::vector<int64_t>& values) {
  return onnx_tensor(name, onnx_type::kInt64, dims, raw_bytes(values));
}
inline Message onnx_external(std::string_view name, int type, const std::vector<int64_t>& dims,
                             const std::vector<std::pair<std::string, std::string>>& entries) {
  Message m;
  for (const int64_t d : dims) m.varint(1, static_cast<uint64_t>(d));
  m.varint(2, static_cast<uint64_t>(type)).bytes(8, name);
  for (const auto& [key, value] : entries) m.message(13, Message().bytes(1, key).bytes(2, value));
  return m.varint(14, 1);
}

// Attributes.
inline Message attr_int(std::string_view name, int64_t value) {
  return Message().bytes(1, name).varint(3, static_cast<uint64_t>(value)).varint(20, 2);
}
inline Message attr_float(std::string_view name, float value) {
  return Message().bytes(1, name).fixed32(2, value).varint(20, 1);
}
inline Message attr_text(std::string_view name, std::string_view value) {
  return Message().bytes(1, name).bytes(4, value).varint(20, 3);
}
inline Message attr_tensor(std::string_view name, const Message& value) {
  return Message().bytes(1, name).message(5, value).varint(20, 4);
}
inline Message attr_graph(std::string_view name, const Message& value) {
  return Message().bytes(1, name).message(6, value).varint(20, 5);
}
inline Message attr_ints(std::string_view name, const std::vector<int64_t>& values) {
  Message m;
  m.bytes(1, name);
  for (const int64_t v : values) m.varint(8, static_cast<uint64_t>(v));
  return m.varint(20, 7);
}
// Inside a function: the attribute takes the value of the caller's attribute `reference`.
inline Message attr_reference(std::string_view name, int type, std::string_view reference) {
  return Message().bytes(1, name).varint(20, static_cast<uint64_t>(type)).bytes(21, reference);
}

inline Message onnx_node(std::string_view op, const std::vector<std::string>& inputs,
                         const std::vector<std::string>& outputs, const std::vector<Message>& attributes = {},
                         std::string_view name = "", std::string_view domain = "") {
  Message m;
  for (const std::string& input : inputs) m.bytes(1, input);
  for (const std::string& output : outputs) m.bytes(2, output);
  if (!name.empty()) m.bytes(3, name);
  m.bytes(4, op);
  for (const Message& attribute : attributes) m.message(5, attribute);
  if (!domain.empty()) m.bytes(7, domain);
  return m;
}

// A dimension: a number, a name, or "" for unknown.
using OnnxDim = std::variant<int64_t, std::string>;
inline Message onnx_value(std::string_view name, int type, const std::vector<OnnxDim>& dims) {
  Message shape;
  for (const OnnxDim& dim : dims) {
    Message d;
    if (const auto* size = std::get_if<int64_t>(&dim)) {
      d.varint(1, static_cast<uint64_t>(*size));
    } else if (!std::get<std::string>(dim).empty()) {
      d.bytes(2, std::get<std::string>(dim));
    }
    shape.message(1, d);
  }
  const Message tensor_type = Message().varint(1, static_cast<uint64_t>(type)).message(2, shape);
  return Message().bytes(1, name).message(2, Message().message(1, tensor_type));
}
// A value whose type is not given.
inline Message onnx_untyped(std::string_view name) { return Message().bytes(1, name); }

struct OnnxGraph {
  std::vector<Message> nodes = {}, inputs = {}, outputs = {}, initializers = {};
  Message write() const {
    Message m;
    for (const Message& node : nodes) m.message(1, node);
    m.bytes(2, "g");
    for (const Message& tensor : initializers) m.message(5, tensor);
    for (const Message& input : inputs) m.message(11, input);
    for (const Message& output : outputs) m.message(12, output);
    return m;
  }
};

struct OnnxFunction {
  std::string domain, name;
  std::vector<std::string> inputs = {}, outputs = {}, attributes = {};
  std::vector<Message> nodes = {};
  int64_t opset = 17;
  Message write() const {
    Message m;
    m.bytes(1, name);
    for (const std::string& input : inputs) m.bytes(4, input);
    for (const std::string& output : outputs) m.bytes(5, output);
    for (const std::string& attribute : attributes) m.bytes(6, attribute);
    for (const Message& node : nodes) m.message(7, node);
    m.message(9, Message().bytes(1, "").varint(2, static_cast<uint64_t>(opset)));
    return m.bytes(10, domain);
  }
};

inline std::string onnx_model(const OnnxGraph& graph, int64_t opset = 17,
                              const std::vector<OnnxFunction>& functions = {},
                              const std::vector<std::pair<std::string, int64_t>>& more_opsets = {}) {
  Message m;
  m.varint(1, 8).message(7, graph.write());
  m.message(8, Message().bytes(1, "").varint(2, static_cast<uint64_t>(opset)));
  for (const auto& [domain, version] : more_opsets)
    m.message(8, Message().bytes(1, domain).varint(2, static_cast<uint64_t>(version)));
  for (const OnnxFunction& function : functions) m.message(25, function.write());
  return m.text();
}

}  // namespace fuseloom::test
