#include "run/prepare.h"

#include "base/check.h"
#include "program/layout.h"
#include "program/line.h"
#include "run/memory.h"
#include "sym/evaluator.h"

namespace fuseloom::run {

namespace {

using program::Buffer;
using program::BufferId;
using program::BufferKind;
using program::Program;

std::byte* address_of(Program& program, BufferId id) {
  const Buffer& storage = program.buffer(program::storage_of(program, id));
  FL_CHECK(storage.kind == BufferKind::Constant, "program {}: init lines use %{}, which is no constant", program.name, storage.name);
  std::byte* const start = static_cast<std::byte*>(program.constants[static_cast<size_t>(storage.index)].data());
  return start + sym::evaluate(program::byte_offset(program, id), {});
}

void run_launch(Program& program, const program::Launch& launch, const KernelLookup& lookup) {
  std::vector<void*> pointers;
  for (const BufferId id : launch.buffers) pointers.push_back(address_of(program, id));
  std::vector<int64_t> sizes;
  for (const sym::Expr& size : launch.sizes) sizes.push_back(sym::evaluate(size, {}));
  size_t chosen = 0;
  while (chosen + 1 < launch.variants.size() && sym::evaluate(launch.variants[chosen].condition, {}) == 0) ++chosen;
  const program::Variant& variant = launch.variants[chosen];
  GrowingBlock scratch;
  char* const scratch_start = reinterpret_cast<char*>(scratch.reserve(sym::evaluate(variant.scratch_bytes, {})));
  const int64_t extent = sym::evaluate(variant.extent, {});
  const std::string& name = program.kernels[static_cast<size_t>(variant.kernel)].name;
  const KernelFunction function = lookup(name);
  FL_CHECK(function != nullptr, "program {}: there is no kernel {}", program.name, name);
  if (extent > 0) function(pointers.data(), sizes.data(), scratch_start, 0, extent);
}

}  // namespace

Program prepare_buffers(Program program, const KernelLookup& lookup) {
  for (program::Line& line : program.lines) {
    const auto prepare = [&](std::unique_ptr<Program>& nested) { *nested = prepare_buffers(std::move(*nested), lookup); };
    if (auto* branch = std::get_if<program::If>(&line.what)) {
      prepare(branch->then);
      prepare(branch->otherwise);
    } else if (auto* loop = std::get_if<program::While>(&line.what)) {
      prepare(loop->body);
    }
  }
  if (program.init.empty()) return program;
  for (Tensor& constant : program.constants) constant = constant.to_contiguous();
  for (Buffer& buffer : program.buffers) {
    if (buffer.kind != BufferKind::Prepared) continue;
    Dims dims;
    for (const sym::Expr& size : buffer.type.shape) dims.push_back(sym::evaluate(size, {}));
    buffer.kind = BufferKind::Constant;
    buffer.index = static_cast<int32_t>(program.constants.size());
    program.constants.emplace_back(buffer.type.dtype, std::move(dims));
  }
  for (const program::Line& line : program.init) run_launch(program, std::get<program::Launch>(line.what), lookup);
  program.init.clear();
  program::remove_unused_constants(program);
  return program;
}

}  // namespace fuseloom::run
