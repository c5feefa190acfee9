#include "program/layout.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "program/line.h"

namespace fuseloom::program {

using sym::Expr;

namespace {

class LayoutMaker {
 public:
  explicit LayoutMaker(const Program& program) : program_(program), ranges_(live_ranges(program)) {}

  Layout make() {
    bind_symbols();
    find_used_buffers();
    make_storages();
    choose_results();
    plan_lines();
    order_placement();
    return std::move(out_);
  }

 private:
  void bind(const std::string& symbol, int32_t stage) {
    FL_CHECK(out_.stages.emplace(symbol, stage).second, "program {}: the symbol {} is bound twice", program_.name, symbol);
  }
  bool is_bound(const std::string& symbol) const { return out_.stages.count(symbol) != 0; }

  void bind_symbols() {
    for (size_t i = 0; i < program_.outer_symbols.size(); ++i) {
      bind(program_.outer_symbols[i], 0);
      out_.bindings.push_back({.symbol = program_.outer_symbols[i], .outer = static_cast<int32_t>(i)});
    }
    struct Size {
      const Expr* expr;
      int32_t input, dimension;
    };
    std::vector<Size> sizes;
    for (size_t i = 0; i < program_.input_types.size(); ++i) {
      int32_t dimension = 0;
      for (const Expr& size : program_.input_types[i].shape) sizes.push_back({&size, static_cast<int32_t>(i), dimension++});
    }
    for (const Size& size : sizes) {
      if (!size.expr->is_symbol() || is_bound(size.expr->name())) continue;
      bind(size.expr->name(), 0);
      out_.bindings.push_back({.symbol = size.expr->name(), .input = size.input, .dimension = size.dimension});
    }
    // Compound sizes with one unknown are solved, until nothing moves; the executor checks all sizes afterwards.
    for (bool moved = true; moved;) {
      moved = false;
      for (const Size& size : sizes) {
        std::vector<std::string> open;
        for (const std::string& symbol : sym::symbols_of(*size.expr)) {
          if (!is_bound(symbol)) open.push_back(symbol);
        }
        if (open.size() != 1) continue;
        std::string target = "size";
        while (is_bound(target) || target == open[0]) target += "_";
        std::optional<Expr> solution = sym::solve_for(*size.expr, open[0], Expr::symbol(target), program_.facts);
        if (!solution) continue;
        bind(open[0], 0);
        out_.bindings.push_back({.symbol = open[0], .input = size.input, .dimension = size.dimension, .solution = std::move(solution), .size_name = target});
        moved = true;
      }
    }
    for (const Size& size : sizes) {
      for (const std::string& symbol : sym::symbols_of(*size.expr))
        FL_REQUIRE(is_bound(symbol), "program {}: the sizes of the inputs do not determine {}, which {} needs", program_.name, symbol,
                   sym::to_string(*size.expr));
    }
    int32_t stage = 0;
    for (const Line& line : program_.lines) {
      const std::span<const std::string> defines = defines_of(line);
      out_.opens.push_back(defines.empty() ? 0 : ++stage);
      for (const std::string& symbol : defines) bind(symbol, stage);
    }
  }

  const Buffer& buffer(BufferId id) const { return program_.buffer(id); }
  int32_t root(BufferId id) const { return storage_of(program_, id).index; }

  void find_used_buffers() {
    out_.used.assign(program_.buffers.size(), 0);
    const auto use = [&](BufferId id) {
      for (;; id = buffer(id).base) {
        out_.used[static_cast<size_t>(id.index)] = 1;
        if (buffer(id).kind != BufferKind::View) return;
      }
    };
    for (const std::vector<Line>* lines : {&program_.init, &program_.lines}) {
      for (const Line& line : *lines) {
        for (const BufferId id : buffers_of(line)) use(id);
      }
    }
    for (const Output& output : program_.outputs) use(output.buffer);
  }

  void make_storages() {
    out_.storage.assign(program_.buffers.size(), -1);
    const auto add = [&](std::span<const BufferId> buffers, Storage storage) {
      storage.buffer = buffers[0];
      for (const BufferId id : buffers) out_.storage[static_cast<size_t>(id.index)] = static_cast<int32_t>(out_.storages.size());
      out_.storages.push_back(storage);
    };
    for (const ArenaSlot& slot : arena_slots(program_))
      add(slot.buffers, {.place = Storage::Place::Arena, .first = slot.range.first, .last = slot.range.last});
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      const Buffer& each = program_.buffers[b];
      if (out_.used[b] == 0 || each.kind == BufferKind::View || out_.storage[b] >= 0) continue;
      Storage storage{.first = ranges_[b].first, .last = ranges_[b].last};
      switch (each.kind) {
        case BufferKind::Input:
          storage.place = Storage::Place::Input;
          storage.index = each.index;
          break;
        case BufferKind::Constant:
        case BufferKind::Prepared: storage.place = Storage::Place::Fixed; break;
        case BufferKind::Temporary:
        case BufferKind::View: storage.place = Storage::Place::Dynamic; break;
      }
      const BufferId id{static_cast<int32_t>(b)};
      add({&id, 1}, storage);
    }
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      if (out_.used[b] != 0) out_.storage[b] = out_.storage[static_cast<size_t>(root(BufferId{static_cast<int32_t>(b)}))];
    }
  }

  // The view is all of its storage.
  bool is_whole(BufferId id) const {
    for (BufferId at = id; buffer(at).kind == BufferKind::View; at = buffer(at).base) {
      if (!buffer(at).offset.is_const(0)) return false;
    }
    const auto bytes = [&](BufferId of) { return op::count_of(buffer(of).type.shape) * dtype_bytes(buffer(of).type.dtype); };
    return sym::prove_equal(bytes(id), bytes(BufferId{root(id)}), program_.facts) == sym::Proof::Yes;
  }

  // A temporary that is a whole result is computed in the result's memory. The first result gets it, others are copies.
  void choose_results() {
    out_.direct.assign(program_.outputs.size(), -1);
    std::set<int32_t> taken;
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      const Output& output = program_.outputs[i];
      if (output.strides) continue;
      const int32_t index = out_.storage[static_cast<size_t>(output.buffer.index)];
      Storage& storage = out_.storages[static_cast<size_t>(index)];
      if (storage.place != Storage::Place::Dynamic || taken.count(index) != 0 || !is_whole(output.buffer)) continue;
      // The result's sizes must be known when its memory is needed: before the line, or when the line itself defines the
      // sizes, after it.
      int32_t known = 0;
      for (int32_t line = 0; line < storage.first; ++line) known = std::max(known, out_.opens[static_cast<size_t>(line)]);
      const int32_t sized = out_.stage_of(buffer(storage.buffer).type.shape), result_sized = out_.stage_of(output.type.shape);
      if (result_sized > (sized <= known ? known : out_.opens[static_cast<size_t>(storage.first)])) continue;
      if (sized == 0 && result_sized == 0) storage.place = Storage::Place::Result;
      storage.index = static_cast<int32_t>(i);
      taken.insert(index);
      out_.direct[i] = index;
    }
  }

  void plan_lines() {
    int32_t known = 0;  // the last stage that is open before the line
    for (size_t i = 0; i < program_.lines.size(); ++i) {
      const int32_t line = static_cast<int32_t>(i);
      out_.births.emplace_back();
      out_.deaths.emplace_back();
      for (size_t s = 0; s < out_.storages.size(); ++s) {
        const Storage& storage = out_.storages[s];
        if (storage.place != Storage::Place::Dynamic) continue;
        // What the line's own symbols size is allocated by the line.
        if (storage.first == line && out_.stage_of(buffer(storage.buffer).type.shape) <= known) out_.births.back().push_back(static_cast<int32_t>(s));
        if (storage.last == line) out_.deaths.back().push_back(static_cast<int32_t>(s));
      }
      known = std::max(known, out_.opens[i]);
    }
  }

  void order_placement() {
    std::vector<char> placed(out_.storages.size(), 0);
    const auto place = [&](int32_t index) {
      if (index < 0 || out_.storages[static_cast<size_t>(index)].place != Storage::Place::Arena || placed[static_cast<size_t>(index)] != 0) return;
      placed[static_cast<size_t>(index)] = 1;
      out_.placement.push_back(index);
    };
    for (const int32_t b : program_.placement_order) place(out_.storage[static_cast<size_t>(b)]);
    for (size_t s = 0; s < out_.storages.size(); ++s) place(static_cast<int32_t>(s));  // a program that was not planned
  }

  const Program& program_;
  const std::vector<LiveRange> ranges_;
  Layout out_;
};

}  // namespace

int32_t Layout::stage_of(const Expr& expr) const {
  int32_t stage = 0;
  for (const std::string& symbol : sym::symbols_of(expr)) {
    const auto found = stages.find(symbol);
    FL_CHECK(found != stages.end(), "nothing binds the symbol {} of {}", symbol, sym::to_string(expr));
    stage = std::max(stage, found->second);
  }
  return stage;
}

int32_t Layout::stage_of(const op::Shape& shape) const {
  int32_t stage = 0;
  for (const Expr& size : shape) stage = std::max(stage, stage_of(size));
  return stage;
}

Layout layout_of(const Program& program) { return LayoutMaker(program).make(); }

sym::Expr byte_offset(const Program& program, BufferId id) {
  Expr offset = 0;
  for (; program.buffer(id).kind == BufferKind::View; id = program.buffer(id).base)
    offset = offset + program.buffer(id).offset * dtype_bytes(program.buffer(id).type.dtype);
  return offset;
}

}  // namespace fuseloom::program
