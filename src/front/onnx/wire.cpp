#include "front/onnx/wire.h"

#include <cstring>
#include <protozero/exception.hpp>
#include <protozero/varint.hpp>

#include "base/check.h"

namespace fuseloom::front::onnx {

namespace {

std::string_view type_name(WireReader::Type type) {
  switch (type) {
    case WireReader::Type::Varint:
      return "a varint";
    case WireReader::Type::Fixed64:
      return "64 bits";
    case WireReader::Type::Bytes:
      return "bytes";
    case WireReader::Type::Fixed32:
      return "32 bits";
  }
  return "?";
}

// Protobuf is little-endian, and so is every machine that fuseloom runs on.
template <class T>
T load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

}  // namespace

WireReader::WireReader(WireSource& source, std::string_view message, int depth)
    : source_(source), position_(message.data()), end_(message.data() + message.size()), depth_(depth) {
  if (depth > WireSource::kMaxDepth) fail(fmt::format("messages nested deeper than {}", WireSource::kMaxDepth));
  if (++source.messages > WireSource::kMaxMessages)
    fail(fmt::format("more than {} messages in the file", WireSource::kMaxMessages));
}

void WireReader::fail(std::string_view what) const {
  const std::ptrdiff_t offset = position_ == nullptr ? 0 : position_ - source_.bytes.data();
  throw UserError(
      fmt::format("{}: not a valid ONNX file: {} at byte {} of {}", source_.name, what, offset, source_.bytes.size()));
}

bool WireReader::next() {
  if (position_ == end_) return false;
  uint64_t key = 0;
  try {
    key = protozero::decode_varint(&position_, end_);
  } catch (const protozero::exception&) {
    fail("a field key that is cut off or too long");
  }
  if (key >> 3 == 0 || key >> 3 > (1u << 29) - 1) fail(fmt::format("the field number {}", key >> 3));
  field_ = static_cast<uint32_t>(key >> 3);
  const auto type = static_cast<uint8_t>(key & 7);
  if (type != 0 && type != 1 && type != 2 && type != 5) fail(fmt::format("the wire type {} of field {}", type, field_));
  type_ = static_cast<Type>(type);
  return true;
}

void WireReader::expect(Type type) const {
  if (type_ != type)
    fail(fmt::format("field {} holds {} where {} was expected", field_, type_name(type_), type_name(type)));
}

std::string_view WireReader::take(uint64_t size) {
  const auto left = static_cast<uint64_t>(end_ - position_);
  if (size > left) fail(fmt::format("field {} claims {} bytes and {} are left", field_, size, left));
  const std::string_view taken(position_, size);
  position_ += size;
  return taken;
}

int64_t WireReader::varint() {
  expect(Type::Varint);
  try {
    return static_cast<int64_t>(protozero::decode_varint(&position_, end_));
  } catch (const protozero::exception&) {
    fail(fmt::format("an integer of field {} that is cut off or too long", field_));
  }
}

float WireReader::float32() {
  expect(Type::Fixed32);
  return load<float>(take(4).data());
}

double WireReader::float64() {
  expect(Type::Fixed64);
  return load<double>(take(8).data());
}

std::string_view WireReader::bytes() {
  expect(Type::Bytes);
  uint64_t size = 0;
  try {
    size = protozero::decode_varint(&position_, end_);
  } catch (const protozero::exception&) {
    fail(fmt::format("the length of field {} is cut off or too long", field_));
  }
  return take(size);
}

WireReader WireReader::message() { return WireReader(source_, bytes(), depth_ + 1); }

void WireReader::skip() {
  switch (type_) {
    case Type::Varint:
      varint();
      return;
    case Type::Fixed64:
      take(8);
      return;
    case Type::Bytes:
      bytes();
      return;
    case Type::Fixed32:
      take(4);
      return;
  }
}

void WireReader::append_varints(std::vector<int64_t>& out) {
  if (type_ == Type::Varint) {
    out.push_back(varint());
    return;
  }
  const std::string_view packed = bytes();
  const char* position = packed.data();
  const char* const end = position + packed.size();
  try {
    while (position != end) out.push_back(static_cast<int64_t>(protozero::decode_varint(&position, end)));
  } catch (const protozero::exception&) {
    fail(fmt::format("a packed integer of field {} that is cut off or too long", field_));
  }
}

void WireReader::append_floats(std::vector<float>& out) {
  if (type_ == Type::Fixed32) {
    out.push_back(float32());
    return;
  }
  const std::string_view packed = bytes();
  if (packed.size() % 4 != 0) fail(fmt::format("packed floats of field {} that take {} bytes", field_, packed.size()));
  const size_t begin = out.size();
  out.resize(begin + packed.size() / 4);
  if (!packed.empty()) std::memcpy(out.data() + begin, packed.data(), packed.size());
}

void WireReader::append_doubles(std::vector<double>& out) {
  if (type_ == Type::Fixed64) {
    out.push_back(float64());
    return;
  }
  const std::string_view packed = bytes();
  if (packed.size() % 8 != 0) fail(fmt::format("packed doubles of field {} that take {} bytes", field_, packed.size()));
  const size_t begin = out.size();
  out.resize(begin + packed.size() / 8);
  if (!packed.empty()) std::memcpy(out.data() + begin, packed.data(), packed.size());
}

}  // namespace fuseloom::front::onnx
