#include "run/layout.h"

#include <algorithm>
#include <set>

#include "base/check.h"

namespace fuseloom::run {

using program::BufferId;
using program::BufferKind;
using program::Program;
using sym::Expr;

namespace {

constexpr int64_t kAlignment = 64;

int64_t round_up(int64_t value) { return (value + kAlignment - 1) / kAlignment * kAlignment; }

std::vector<std::string> defined_by(const program::Line& line) {
  if (const auto* call = std::get_if<program::Call>(&line.what)) return call->defines;
  if (const auto* read = std::get_if<program::ReadSymbols>(&line.what)) return read->defines;
  if (const auto* branch = std::get_if<program::If>(&line.what)) return branch->defines;
  if (const auto* loop = std::get_if<program::While>(&line.what)) return loop->defines;
  return {};
}

}  // namespace

std::vector<Expr> line_expressions(const program::Line& line) {
  if (const auto* launch = std::get_if<program::Launch>(&line.what)) {
    std::vector<Expr> out = launch->sizes;
    out.insert(out.end(), {launch->extent, launch->scratch_bytes, launch->work, launch->bytes});
    return out;
  }
  if (const auto* check = std::get_if<program::Assert>(&line.what)) return {check->condition};
  return {};
}

Layout::Layout(const Program& program) {
  const auto add_symbol = [&](const std::string& name) {
    if (symbol_index.emplace(name, symbols.size()).second) symbols.push_back(name);
  };
  for (const std::string& name : program.outer_symbols) add_symbol(name);
  for (const op::TensorType& type : program.input_types) {
    for (const Expr& size : type.shape) {
      for (const std::string& name : sym::symbols_of(size)) add_symbol(name);
    }
  }
  static_symbols = symbols.size();
  for (const program::Line& line : program.lines) {
    for (const std::string& name : defined_by(line)) add_symbol(name);
  }
  const std::vector<std::string> known(symbols.begin(), symbols.begin() + static_cast<ptrdiff_t>(static_symbols));
  const auto depends_on_lines = [&](const Expr& expr) {
    for (const std::string& name : sym::symbols_of(expr)) {
      const auto found = symbol_index.find(name);
      FL_CHECK(found != symbol_index.end(), "program {}: the size '{}' is bound by nothing", program.name, name);
      if (found->second >= static_symbols) return true;
    }
    return false;
  };

  // Lines.
  std::vector<Expr> collected;
  line_evaluator.resize(program.lines.size());
  for (size_t i = 0; i < program.lines.size(); ++i) {
    const std::vector<Expr> exprs = line_expressions(program.lines[i]);
    if (std::any_of(exprs.begin(), exprs.end(), depends_on_lines)) {
      line_begin.push_back(-1);
      line_evaluator[i] = sym::Evaluator(symbols, exprs);
      continue;
    }
    line_begin.push_back(static_cast<int64_t>(collected.size()));
    collected.insert(collected.end(), exprs.begin(), exprs.end());
  }
  static_lines = sym::Evaluator(known, collected);

  // Buffers.
  const size_t count = program.buffers.size();
  collected.clear();
  is_static.assign(count, 0);
  dims_begin.assign(count, -1);
  offset_at.assign(count, -1);
  dynamic_dims.resize(count);
  for (size_t b = 0; b < count; ++b) {
    const program::Buffer& buffer = program.buffers[b];
    std::vector<Expr> exprs = buffer.type.shape;
    exprs.push_back(buffer.offset);
    if (std::any_of(exprs.begin(), exprs.end(), depends_on_lines)) {
      dynamic_dims[b] = sym::Evaluator(symbols, exprs);
      continue;
    }
    is_static[b] = 1;
    dims_begin[b] = static_cast<int64_t>(collected.size());
    collected.insert(collected.end(), exprs.begin(), exprs.end());
    offset_at[b] = static_cast<int64_t>(collected.size()) - 1;
  }
  static_dims = sym::Evaluator(known, collected);

  // Outputs.
  collected.clear();
  for (const program::Output& output : program.outputs) {
    std::vector<Expr> exprs = output.type.shape;
    if (output.strides) exprs.insert(exprs.end(), output.strides->begin(), output.strides->end());
    exprs.push_back(output.offset);
    if (std::any_of(exprs.begin(), exprs.end(), depends_on_lines)) {
      output_begin.push_back(-1);
      continue;
    }
    output_begin.push_back(static_cast<int64_t>(collected.size()));
    collected.insert(collected.end(), exprs.begin(), exprs.end());
  }
  output_shapes = sym::Evaluator(known, collected);

  // Results computed in the caller's memory: a temporary that is a whole output by itself.
  const std::vector<char> planned = program::planned_buffers(program);
  result_of.assign(count, -1);
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    const program::Output& output = program.outputs[o];
    if (output.strides) continue;
    const BufferId storage = program::storage_of(program, output.buffer);
    const program::Buffer& held = program.buffer(storage);
    const program::Buffer& seen = program.buffer(output.buffer);
    const bool whole = storage == output.buffer || (seen.offset.is_const(0) && seen.type.dtype == held.type.dtype &&
                                                    sym::prove_equal(op::count_of(seen.type.shape), op::count_of(held.type.shape), program.facts) == sym::Proof::Yes);
    if (held.kind != BufferKind::Temporary || planned[static_cast<size_t>(storage.index)] == 0 || !whole) continue;
    int32_t& result = result_of[static_cast<size_t>(storage.index)];
    if (result < 0) result = static_cast<int32_t>(o);
  }

  // Slots: planned temporaries; a result written in place over an operand that dies there joins the operand's slot.
  const std::vector<program::LiveRange> ranges = program::live_ranges(program);
  slot_of.assign(count, -1);
  const auto in_arena = [&](BufferId id) {
    const size_t b = static_cast<size_t>(id.index);
    return program.buffers[b].kind == BufferKind::Temporary && planned[b] != 0 && result_of[b] < 0 && ranges[b].first >= 0;
  };
  const auto add_slot = [&](BufferId id) {
    slot_of[static_cast<size_t>(id.index)] = static_cast<int32_t>(slot_range.size());
    slot_range.push_back(ranges[static_cast<size_t>(id.index)]);
    slot_buffer.push_back(id.index);
  };
  for (size_t i = 0; i < program.lines.size(); ++i) {
    const auto* launch = std::get_if<program::Launch>(&program.lines[i].what);
    if (launch != nullptr) {
      std::set<int32_t> taken;
      for (const auto& [written, read] : launch->in_place) {
        if (!in_arena(written) || !in_arena(read) || slot_of[static_cast<size_t>(written.index)] >= 0) continue;
        const int32_t slot = slot_of[static_cast<size_t>(read.index)];
        if (slot < 0 || slot_range[static_cast<size_t>(slot)].last != static_cast<int32_t>(i) || !taken.insert(slot).second) continue;
        if (ranges[static_cast<size_t>(written.index)].first != static_cast<int32_t>(i)) continue;
        slot_of[static_cast<size_t>(written.index)] = slot;
        slot_range[static_cast<size_t>(slot)].last = ranges[static_cast<size_t>(written.index)].last;
      }
    }
    for (size_t b = 0; b < count; ++b) {
      const BufferId id{static_cast<int32_t>(b)};
      if (ranges[b].first == static_cast<int32_t>(i) && in_arena(id) && slot_of[b] < 0) add_slot(id);
    }
  }
  std::vector<char> ordered(slot_range.size(), 0);
  const auto order = [&](int32_t slot) {
    if (slot < 0 || ordered[static_cast<size_t>(slot)] != 0) return;
    ordered[static_cast<size_t>(slot)] = 1;
    slot_order.push_back(slot);
  };
  for (const int32_t buffer : program.placement_order) order(slot_of[static_cast<size_t>(buffer)]);
  for (size_t slot = 0; slot < slot_range.size(); ++slot) order(static_cast<int32_t>(slot));
  conflicts.resize(slot_range.size());
  for (size_t i = 0; i < slot_order.size(); ++i) {
    const size_t slot = static_cast<size_t>(slot_order[i]);
    for (size_t j = 0; j < i; ++j) {
      const size_t other = static_cast<size_t>(slot_order[j]);
      if (slot_range[slot].first <= slot_range[other].last && slot_range[other].first <= slot_range[slot].last) conflicts[slot].push_back(static_cast<int32_t>(other));
    }
  }
  dying.resize(program.lines.size() + 1);
  for (size_t b = 0; b < count; ++b) {
    const bool dynamic = program.buffers[b].kind == BufferKind::Temporary && slot_of[b] < 0 && result_of[b] < 0 && ranges[b].last >= 0;
    if (dynamic && ranges[b].last < static_cast<int32_t>(program.lines.size())) dying[static_cast<size_t>(ranges[b].last)].push_back(static_cast<int32_t>(b));
  }
}

namespace {

// B2: bare symbols first, then compound sizes are solved or checked.
void bind(const Program& program, const Layout& layout, Entry& entry) {
  std::map<std::string, int64_t> values;
  const size_t outer = program.outer_symbols.size();
  for (size_t i = 0; i < outer; ++i) values[program.outer_symbols[i]] = entry.key[entry.key.size() - outer + i];
  const auto dim_of = [&](size_t input, size_t d) {
    size_t at = d;
    for (size_t i = 0; i < input; ++i) at += program.input_types[i].shape.size();
    return entry.key[at];
  };
  for (size_t i = 0; i < program.input_types.size(); ++i) {
    const op::Shape& shape = program.input_types[i].shape;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d].is_symbol()) values.emplace(shape[d].name(), dim_of(i, d));
    }
  }
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t i = 0; i < program.input_types.size(); ++i) {
      const op::Shape& shape = program.input_types[i].shape;
      for (size_t d = 0; d < shape.size(); ++d) {
        std::vector<std::string> missing;
        for (const std::string& name : sym::symbols_of(shape[d])) {
          if (values.count(name) == 0) missing.push_back(name);
        }
        if (missing.size() != 1) continue;
        const std::optional<Expr> solved = sym::solve_for(shape[d], missing[0], dim_of(i, d));
        if (!solved) continue;
        values[missing[0]] = sym::evaluate(*solved, values);
        progress = true;
      }
    }
  }
  for (size_t i = 0; i < program.input_types.size(); ++i) {
    const op::Shape& shape = program.input_types[i].shape;
    for (size_t d = 0; d < shape.size(); ++d) {
      for (const std::string& name : sym::symbols_of(shape[d])) {
        FL_REQUIRE(values.count(name) != 0, "input '{}', dimension {}: the size {} does not determine '{}'; add an input with that size itself",
                   program.input_names[i], d, sym::to_string(shape[d]), name);
      }
      const int64_t expected = sym::evaluate(shape[d], values);
      FL_REQUIRE(expected == dim_of(i, d), "input '{}', dimension {} ({}): expected {}, got {}", program.input_names[i], d, sym::to_string(shape[d]), expected, dim_of(i, d));
    }
  }
  for (size_t s = 0; s < layout.static_symbols; ++s) {
    const std::string& name = layout.symbols[s];
    const auto value = values.find(name);
    FL_CHECK(value != values.end(), "program {}: the size '{}' has no value", program.name, name);
    const auto fact = program.facts.symbols.find(name);
    if (fact != program.facts.symbols.end()) {
      const sym::Range& range = fact->second;
      FL_REQUIRE(value->second >= range.low && value->second <= range.high, "the size '{}' is {}; the model was compiled for {} to {}", name, value->second, range.low, range.high);
      FL_REQUIRE(range.divisor <= 1 || value->second % range.divisor == 0, "the size '{}' is {}; the model was compiled for multiples of {}", name, value->second, range.divisor);
    }
    entry.symbols.push_back(value->second);
  }
}

std::vector<int64_t> evaluate(const sym::Evaluator& evaluator, std::span<const int64_t> symbols) {
  std::vector<int64_t> scratch(evaluator.scratch_size()), results(evaluator.result_count());
  evaluator.evaluate(symbols, scratch, results);
  return results;
}

}  // namespace

void make_entry(const Program& program, const Layout& layout, Entry& entry) {
  bind(program, layout, entry);
  entry.line_values = evaluate(layout.static_lines, entry.symbols);
  entry.buffer_values = evaluate(layout.static_dims, entry.symbols);
  for (size_t i = 0; i < program.lines.size(); ++i) {
    const auto* launch = std::get_if<program::Launch>(&program.lines[i].what);
    if (launch == nullptr || layout.line_begin[i] < 0) continue;
    entry.scratch_bytes = std::max(entry.scratch_bytes, entry.line_values[static_cast<size_t>(layout.line_begin[i]) + launch->sizes.size() + 1]);
  }
  // First fit in placement order.
  const size_t slots = layout.slot_order.size();
  entry.slot_offset.assign(slots, 0);
  entry.slot_bytes.assign(slots, 0);
  for (size_t slot = 0; slot < slots; ++slot) {
    const size_t b = static_cast<size_t>(layout.slot_buffer[slot]);
    const program::Buffer& buffer = program.buffers[b];
    int64_t count = 1;
    for (size_t d = 0; d < buffer.type.shape.size(); ++d) {
      const int64_t size = entry.buffer_values[static_cast<size_t>(layout.dims_begin[b]) + d];
      FL_REQUIRE(size >= 0, "'{}' would have the size {} ({}) in dimension {}; the inputs are too small", buffer.name, size, sym::to_string(buffer.type.shape[d]), d);
      FL_REQUIRE(!__builtin_mul_overflow(count, size, &count), "'{}' would have more than 2^63 elements", buffer.name);
    }
    entry.slot_bytes[slot] = round_up(dtype_bytes(buffer.type.dtype, count));
  }
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (const int32_t id : layout.slot_order) {
    const size_t slot = static_cast<size_t>(id);
    taken.clear();
    for (const int32_t other : layout.conflicts[slot]) {
      const size_t o = static_cast<size_t>(other);
      if (entry.slot_bytes[o] > 0) taken.emplace_back(entry.slot_offset[o], entry.slot_offset[o] + entry.slot_bytes[o]);
    }
    std::sort(taken.begin(), taken.end());
    int64_t offset = 0;
    for (const auto& [begin, end] : taken) {
      if (begin - offset >= entry.slot_bytes[slot]) break;
      offset = std::max(offset, end);
    }
    entry.slot_offset[slot] = offset;
    entry.arena_bytes = std::max(entry.arena_bytes, offset + entry.slot_bytes[slot]);
  }
  std::vector<int64_t> change(program.lines.size() + 2, 0);
  for (size_t slot = 0; slot < slots; ++slot) {
    change[static_cast<size_t>(layout.slot_range[slot].first)] += entry.slot_bytes[slot];
    change[static_cast<size_t>(layout.slot_range[slot].last) + 1] -= entry.slot_bytes[slot];
  }
  int64_t live = 0;
  for (const int64_t each : change) {
    live += each;
    entry.lower_bound = std::max(entry.lower_bound, live);
  }
  const std::vector<int64_t> outputs = evaluate(layout.output_shapes, entry.symbols);
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    const program::Output& output = program.outputs[o];
    Dims dims, strides;
    int64_t offset = 0;
    if (layout.output_begin[o] >= 0) {
      size_t at = static_cast<size_t>(layout.output_begin[o]);
      for (size_t d = 0; d < output.type.shape.size(); ++d) dims.push_back(outputs[at++]);
      if (output.strides) {
        for (size_t d = 0; d < output.strides->size(); ++d) strides.push_back(outputs[at++]);
      }
      offset = outputs[at];
    }
    entry.output_dims.push_back(std::move(dims));
    entry.output_strides.push_back(std::move(strides));
    entry.output_offset.push_back(offset);
  }
}

}  // namespace fuseloom::run
