#include "front/npy.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/check.h"

namespace fuseloom::front {

namespace {

static_assert(std::endian::native == std::endian::little, "elements are written as they lie in memory");

constexpr std::string_view kMagic = "\x93NUMPY";

std::string_view descr_of(DType dtype) {
  switch (dtype) {
    case DType::Bool: return "|b1";
    case DType::I8: return "|i1";
    case DType::I16: return "<i2";
    case DType::I32: return "<i4";
    case DType::I64: return "<i8";
    case DType::U8: return "|u1";
    case DType::U16: return "<u2";
    case DType::U32: return "<u4";
    case DType::U64: return "<u8";
    case DType::F16: return "<f2";
    case DType::BF16: return "|V2";
    case DType::F32: return "<f4";
    case DType::F64: return "<f8";
    case DType::C64: return "<c8";
    case DType::C128: return "<c16";
  }
  throw InternalError("descr_of: not a dtype");
}

std::optional<DType> dtype_of(std::string_view descr) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const DType dtype = static_cast<DType>(i);
    if (descr_of(dtype).substr(1) == descr.substr(1)) return dtype;
  }
  return std::nullopt;
}

// The text behind `'key':` in the header, which is a Python dictionary of three entries.
std::string_view entry(std::string_view header, std::string_view key, const std::string& name) {
  for (const char quote : {'\'', '"'}) {
    const std::string quoted = fmt::format("{}{}{}", quote, key, quote);
    const size_t at = header.find(quoted);
    if (at == std::string_view::npos) continue;
    const size_t colon = header.find(':', at + quoted.size());
    if (colon == std::string_view::npos) continue;
    std::string_view rest = header.substr(colon + 1);
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    return rest;
  }
  throw UserError(fmt::format("{}: the header of the .npy file has no '{}'", name, key));
}

Dims parse_dims(std::string_view text, const std::string& name) {
  const size_t close = text.find(')');
  FL_REQUIRE(!text.empty() && text[0] == '(' && close != std::string_view::npos, "{}: the shape in the .npy header is not a tuple", name);
  text = text.substr(1, close - 1);
  Dims dims;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(" ,"), text.size()));
    if (text.empty()) return dims;
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    FL_REQUIRE(error == std::errc() && value >= 0, "{}: the shape in the .npy header holds '{}', expected sizes", name, text);
    dims.push_back(value);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
  }
}

void swap_bytes(char* data, size_t bytes, size_t width) {
  for (size_t i = 0; i + width <= bytes; i += width) std::reverse(data + i, data + i + width);
}

}  // namespace

Tensor parse_npy(std::string_view bytes, const std::string& name) {
  FL_REQUIRE(bytes.size() >= 10 && bytes.substr(0, kMagic.size()) == kMagic, "{}: is not an .npy file", name);
  const int version = static_cast<unsigned char>(bytes[6]);
  FL_REQUIRE(version >= 1 && version <= 3, "{}: is an .npy file of version {}; versions 1 to 3 are known", name, version);
  const size_t length_bytes = version == 1 ? 2 : 4;
  FL_REQUIRE(bytes.size() >= 8 + length_bytes, "{}: the .npy file ends within its header", name);
  size_t header_bytes = 0;
  for (size_t i = 0; i < length_bytes; ++i) header_bytes |= static_cast<size_t>(static_cast<unsigned char>(bytes[8 + i])) << (8 * i);
  const size_t start = 8 + length_bytes;
  FL_REQUIRE(header_bytes <= bytes.size() - start, "{}: the .npy file ends within its header", name);
  const std::string_view header = bytes.substr(start, header_bytes);
  const std::string_view data = bytes.substr(start + header_bytes);

  std::string_view descr = entry(header, "descr", name);
  const size_t end_quote = descr.empty() ? std::string_view::npos : descr.find(descr[0], 1);
  FL_REQUIRE(end_quote != std::string_view::npos && (descr[0] == '\'' || descr[0] == '"') && end_quote >= 3,
             "{}: the .npy file holds records; expected numbers", name);
  descr = descr.substr(1, end_quote - 1);
  const std::optional<DType> dtype = dtype_of(descr);
  FL_REQUIRE(dtype.has_value(), "{}: the .npy file holds elements of type '{}', which fuseloom does not have", name, descr);
  const bool column_major = entry(header, "fortran_order", name).substr(0, 4) == "True";
  const Dims dims = parse_dims(entry(header, "shape", name), name);

  const int64_t needed = dtype_bytes(*dtype, element_count(dims));
  FL_REQUIRE(static_cast<int64_t>(data.size()) >= needed, "{}: the .npy file has {} bytes of data, its header promises {}", name,
             data.size(), needed);
  Dims stored = dims;
  if (column_major) std::reverse(stored.begin(), stored.end());
  Tensor tensor(*dtype, stored);
  if (needed > 0) std::memcpy(tensor.data(), data.data(), static_cast<size_t>(needed));
  if (descr[0] == '>') {
    const size_t width = static_cast<size_t>(dtype_bytes(*dtype)) / (is_complex(*dtype) ? 2 : 1);
    swap_bytes(static_cast<char*>(tensor.data()), static_cast<size_t>(needed), width);
  }
  if (!column_major) return tensor;
  Dims strides = contiguous_strides(stored);
  std::reverse(strides.begin(), strides.end());
  return Tensor::share(*dtype, dims, strides, tensor.data(), tensor.owner()).contiguous_copy();
}

Tensor read_npy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  FL_REQUIRE(file.good(), "{}: cannot be read", path);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  return parse_npy(bytes, path);
}

std::string to_npy(const Tensor& tensor) {
  const Tensor contiguous = tensor.to_contiguous();
  std::string shape;
  for (const int64_t size : tensor.dims()) shape += fmt::format("{}, ", size);
  if (tensor.rank() > 1) shape.resize(shape.size() - 2);
  if (tensor.rank() == 1) shape.resize(shape.size() - 1);
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr_of(tensor.dtype()), shape);
  // The data begins at a multiple of 64 bytes; the header ends in a line feed.
  const size_t unpadded = kMagic.size() + 4 + header.size() + 1;
  header.append((64 - unpadded % 64) % 64, ' ');
  header += '\n';
  std::string out(kMagic);
  out += '\x01';
  out += '\0';
  out += static_cast<char>(header.size() & 0xff);
  out += static_cast<char>(header.size() >> 8);
  out += header;
  out.append(static_cast<const char*>(contiguous.data()), static_cast<size_t>(contiguous.bytes()));
  return out;
}

void write_npy(const std::string& path, const Tensor& tensor) {
  std::ofstream file(path, std::ios::binary);
  file << to_npy(tensor);
  file.close();
  FL_REQUIRE(file.good(), "{}: cannot be written", path);
}

}  // namespace fuseloom::front
