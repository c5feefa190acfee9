// The protobuf wire format: a cursor over the fields of one message, without copying.
//
// Varints are decoded by protozero; fields and lengths are ours, because protozero's own reader narrows a length to 32
// bits, so that a hostile length of 2^63 would pass as 0. Every length is checked against what is left of the message
// before it is used. Every error is a UserError with the file's name and the byte offset.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fuseloom::front::onnx {

// What the errors of a reader refer to, and what bounds the work a file may cause.
struct WireSource {
  std::string name;                      // the file's name
  std::string_view bytes;                // the whole file: offsets in messages are relative to it
  static constexpr int kMaxDepth = 100;  // nested messages; protobuf's own limit
  static constexpr int64_t kMaxMessages = int64_t{1} << 21;
  int64_t messages = 0;  // seen so far
};

class WireReader {
 public:
  enum class Type : uint8_t { Varint = 0, Fixed64 = 1, Bytes = 2, Fixed32 = 5 };

  WireReader(WireSource& source, std::string_view message, int depth);

  // Moves to the next field; false at the end of the message. The value of a field must be read before the next call.
  bool next();
  uint32_t field() const { return field_; }
  int depth() const { return depth_; }

  int64_t varint();
  float float32();
  double float64();
  std::string_view bytes();
  // The reader of the embedded message that this field is.
  WireReader message();
  void skip();

  // Repeated numbers, packed or one per field.
  void append_varints(std::vector<int64_t>& out);
  void append_floats(std::vector<float>& out);
  void append_doubles(std::vector<double>& out);

  [[noreturn]] void fail(std::string_view what) const;

 private:
  void expect(Type type) const;
  std::string_view take(uint64_t size);

  WireSource& source_;
  const char* position_;
  const char* end_;
  int depth_;
  uint32_t field_ = 0;
  Type type_ = Type::Varint;
};

}  // namespace fuseloom::front::onnx
