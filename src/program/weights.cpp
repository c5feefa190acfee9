#include "program/weights.h"

#include <cstring>

#include "base/check.h"
#include "base/hash.h"
#include "program/line.h"
#include "program/layout.h"

namespace fuseloom::program {

void Weights::add(const Program& program) {
  const Layout layout = layout_of(program);
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (buffer.kind == BufferKind::Constant && layout.used[i] != 0) add(program.constants[static_cast<size_t>(buffer.index)]);
  }
  for (const Line& line : program.lines) {
    if (const auto* branch = std::get_if<If>(&line.what)) {
      add(*branch->then);
      add(*branch->otherwise);
    } else if (const auto* loop = std::get_if<While>(&line.what)) {
      add(*loop->body);
    }
  }
}

void Weights::add(const Tensor& tensor) {
  const Tensor contiguous = tensor.to_contiguous();
  if (!offsets_.emplace(op::tensor_hash(contiguous), end_).second) return;
  pieces_.push_back({contiguous, end_});
  end_ += (contiguous.bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t Weights::offset_of(const Tensor& tensor) const {
  const auto found = offsets_.find(op::tensor_hash(tensor.to_contiguous()));
  FL_CHECK(found != offsets_.end(), "a constant {} is not among the weights", tensor.type_string());
  return found->second;
}

std::vector<std::byte> Weights::blob() const {
  std::vector<std::byte> blob(static_cast<size_t>(bytes()));
  if (empty()) return blob;
  for (const Piece& piece : pieces_) {
    if (piece.tensor.bytes() > 0) std::memcpy(blob.data() + piece.offset, piece.tensor.data(), static_cast<size_t>(piece.tensor.bytes()));
  }
  const std::string digits = base::hash_bytes(blob.data() + kHeaderBytes, blob.size() - static_cast<size_t>(kHeaderBytes)).hex();
  std::memcpy(blob.data(), "fuseloom weights", 16);
  std::memcpy(blob.data() + 16, digits.data(), 32);
  for (size_t i = 0; i < 8; ++i) blob[48 + i] = static_cast<std::byte>(static_cast<uint64_t>(bytes()) >> (8 * i));
  return blob;
}

std::string Weights::hash() const {
  if (empty()) return "";
  const std::vector<std::byte> whole = blob();
  return {reinterpret_cast<const char*>(whole.data()) + 16, 32};
}

}  // namespace fuseloom::program
