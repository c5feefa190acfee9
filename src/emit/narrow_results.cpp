#include "emit/narrow_results.h"

#include <functional>

namespace fuseloom::emit {

using kernel::Body;
using kernel::ScalarId;

namespace {

bool is_half(DType dtype) { return dtype == DType::F16 || dtype == DType::BF16; }
size_t at(ScalarId id) { return static_cast<size_t>(id.index); }

}  // namespace

// 1. Every use of a value is an edge to what it helps to make: a scalar, an accumulator's result, a buffer of the kernel's own.
// 2. A use that makes something else (a stored f32, a comparison, an index) shows the value as it is.
// 3. What is shown shows all that made it, up to conversions to f16 and bf16.
NarrowResults::NarrowResults(const kernel::Kernel& kernel)
    : coarse(kernel.scalars.size()), only_bf16(kernel.scalars.size(), true), sources(kernel.scalars.size(), nullptr) {
  const size_t scalars = kernel.scalars.size(), nodes = scalars + kernel.buffers.size();
  std::vector<std::vector<size_t>> made_from(nodes);
  std::vector<size_t> shown;
  std::vector<bool> used(scalars), is_shown(nodes);
  const auto dtype_of = [&](ScalarId id) { return kernel.scalars[at(id)].dtype; };
  const auto show = [&](size_t node) {
    if (!is_shown[node]) shown.push_back(node);
    is_shown[node] = true;
  };
  const auto own = [&](kernel::BufferId id) { return kernel.buffer(id).space != kernel::Space::Global; };
  const std::function<void(const Body&)> read = [&](const Body& statements) {
    for (const kernel::Statement& statement : statements) {
      if (const auto* let = std::get_if<kernel::Let>(&statement.what)) {
        sources[at(let->result)] = &let->source;
        if (const auto* apply = std::get_if<kernel::Apply>(&let->source)) {
          const DType result = dtype_of(let->result);
          // Whether something is zero shows nothing else of it; what is coarse is zero below the normal numbers.
          const auto is_zero = [&](ScalarId id) {
            const kernel::Source* source = sources[at(id)];
            const auto* constant = source != nullptr ? std::get_if<kernel::Constant>(source) : nullptr;
            return constant != nullptr && constant->real == 0;
          };
          const bool compares_with_zero = apply->op->name == "eq" && (is_zero(apply->args[0]) || is_zero(apply->args[1]));
          for (size_t i = 0; i < apply->args.size(); ++i) {
            const ScalarId arg = apply->args[i];
            used[at(arg)] = true;
            const bool rounds = apply->op->name == "cast" && is_half(result);
            if (!rounds || result != DType::BF16) only_bf16[at(arg)] = false;
            if (rounds) continue;
            if (result == DType::F32 && dtype_of(arg) == DType::F32) {
              made_from[at(let->result)].push_back(at(arg));
            } else if (!compares_with_zero) {
              show(at(arg));
            }
          }
        } else if (const auto* load = std::get_if<kernel::Load>(&let->source)) {
          if (own(load->buffer)) made_from[at(let->result)].push_back(scalars + static_cast<size_t>(load->buffer.index));
        } else if (const auto* current = std::get_if<kernel::Current>(&let->source)) {
          made_from[at(let->result)].push_back(at(current->accumulator));
        }
      } else if (const auto* store = std::get_if<kernel::Store>(&statement.what)) {
        used[at(store->value)] = true;
        only_bf16[at(store->value)] = false;
        if (own(store->buffer)) {
          made_from[scalars + static_cast<size_t>(store->buffer.index)].push_back(at(store->value));
        } else {
          show(at(store->value));
        }
      } else if (const auto* accumulate = std::get_if<kernel::Accumulate>(&statement.what)) {
        used[at(accumulate->value)] = true;
        only_bf16[at(accumulate->value)] = false;
        if (dtype_of(accumulate->accumulator) == DType::F32) {
          made_from[at(accumulate->accumulator)].push_back(at(accumulate->value));
        } else {
          show(at(accumulate->value));
        }
      } else if (const auto* loop = std::get_if<kernel::Loop>(&statement.what)) {
        read(loop->body);
      } else if (const auto* reduce = std::get_if<kernel::Reduce>(&statement.what)) {
        read(reduce->body);
      } else if (const auto* branch = std::get_if<kernel::If>(&statement.what)) {
        read(branch->then);
      }
    }
  };
  read(kernel.body);
  for (size_t next = 0; next < shown.size(); ++next) {
    for (const size_t source : made_from[shown[next]]) show(source);
  }
  for (size_t i = 0; i < scalars; ++i) {
    coarse[i] = kernel.scalars[i].dtype == DType::F32 && used[i] && !is_shown[i];
    only_bf16[i] = only_bf16[i] && coarse[i];
  }
}

}  // namespace fuseloom::emit
