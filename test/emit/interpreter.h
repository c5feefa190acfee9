// Runs a kernel as its semantics say (src/kernel/kernel.h): one element after the other, every op by its reference. Float
// sums are accumulated in f64. Blocks and threads run one after the other: a Thread loop is a loop, and each thread has
// Local buffers of its own.
#pragma once
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "kernel/kernel.h"
#include "op/op.h"
#include "op/philox.h"
#include "sym/evaluator.h"

namespace fuseloom::emit {

class Interpreter {
 public:
  // `buffers`: the Global ones, in order; each a tensor of its own size.
  Interpreter(const kernel::Kernel& kernel, std::vector<Tensor> buffers, const std::vector<int64_t>& sizes) : kernel_(kernel) {
    for (size_t i = 0; i < sizes.size(); ++i) integers_[kernel.symbols[i]] = sizes[i];
    size_t next = 0;
    for (const kernel::Buffer& buffer : kernel.buffers)
      buffers_.push_back(buffer.space == kernel::Space::Global ? buffers[next++] : Tensor(buffer.dtype, {eval(buffer.size)}));
    scalars_.resize(kernel.scalars.size());
  }
  void run() { body(kernel_.body); }

 private:
  int64_t eval(const sym::Expr& expr) const { return sym::evaluate(expr, integers_); }
  bool holds(const std::vector<sym::Expr>& guards) const {
    for (const sym::Expr& guard : guards)
      if (eval(guard) == 0) return false;
    return true;
  }
  static void copy(Tensor& to, int64_t i, const Tensor& from, int64_t j) {
    const int64_t bytes = dtype_bytes(to.dtype());
    std::memcpy(static_cast<char*>(to.data()) + i * bytes, static_cast<const char*>(from.data()) + j * bytes, static_cast<size_t>(bytes));
  }
  void set(kernel::ScalarId id, Tensor value) {
    if (kernel_.scalar(id).dtype == DType::I64) integers_[kernel_.scalar(id).name] = value.int_at(0);
    scalars_[static_cast<size_t>(id.index)] = std::move(value);
  }
  const Tensor& get(kernel::ScalarId id) const { return scalars_[static_cast<size_t>(id.index)]; }
  static Tensor apply(std::string_view op, std::vector<Tensor> args, const op::Attrs& attrs = {}) {
    return op::run_reference(op::standard_ops().at(op), args, attrs).at(0);
  }
  static Tensor integer(DType dtype, int64_t value) {
    Tensor tensor(dtype, {});
    tensor.set_int(0, value);
    return tensor;
  }

  Tensor source(const kernel::Source& source, DType dtype) {
    if (const auto* c = std::get_if<kernel::Constant>(&source)) {
      if (is_complex(dtype)) {
        Tensor tensor(dtype, {});
        tensor.set_complex(0, c->real, c->imag);
        return tensor;
      }
      return is_float(dtype) ? Tensor::scalar(dtype, c->real) : integer(dtype, c->integer);
    }
    if (const auto* v = std::get_if<kernel::IndexValue>(&source)) return integer(DType::I64, eval(v->value)).cast(dtype);
    if (const auto* l = std::get_if<kernel::Load>(&source)) {
      if (!holds(l->guards)) return Tensor::scalar(dtype, l->fill);
      Tensor tensor(dtype, {});
      const Tensor& buffer = storage(l->buffer);
      const int64_t index = eval(l->index);
      EXPECT_TRUE(index >= 0 && index < buffer.count()) << "the kernel reads @" << kernel_.buffer(l->buffer).name << "[" << index << "]";
      if (index >= 0 && index < buffer.count()) copy(tensor, 0, buffer, index);
      return tensor;
    }
    if (const auto* a = std::get_if<kernel::Apply>(&source)) {
      std::vector<Tensor> args;
      for (const kernel::ScalarId arg : a->args) args.push_back(get(arg));
      op::Attrs attrs = a->attrs;
      if (a->op->name == "cast" || a->op->name == "bitcast") attrs.set("to", dtype);
      return apply(a->op->name, args, attrs);
    }
    if (const auto* c = std::get_if<kernel::Current>(&source)) return running_.at(c->accumulator.index).cast(dtype);
    const auto& p = std::get<kernel::Philox>(source);
    return integer(dtype, op::philox::philox_word(static_cast<uint64_t>(eval(p.seed)), 0, static_cast<uint64_t>(eval(p.counter))));
  }

  void body(const kernel::Body& statements) {
    for (const kernel::Statement& statement : statements) std::visit([this](const auto& s) { run(s); }, statement.what);
  }
  void run(const kernel::Loop& loop) {
    const int64_t end = eval(loop.end);
    const int dimension = loop.binding == kernel::Binding::ThreadX ? 0 : loop.binding == kernel::Binding::ThreadY ? 1 : loop.binding == kernel::Binding::ThreadZ ? 2 : -1;
    for (int64_t i = eval(loop.begin); i < end; ++i) {
      integers_[loop.axis] = i;
      if (dimension >= 0) thread_[static_cast<size_t>(dimension)] = i;
      body(loop.body);
    }
    if (dimension >= 0) thread_[static_cast<size_t>(dimension)] = 0;
  }
  // A Local buffer is the running thread's.
  Tensor& storage(kernel::BufferId id) {
    const kernel::Buffer& buffer = kernel_.buffer(id);
    if (buffer.space != kernel::Space::Local || thread_ == std::array<int64_t, 3>{}) return buffers_[static_cast<size_t>(id.index)];
    Tensor& own = locals_[{id.index, thread_}];
    if (!own.valid()) own = Tensor(buffer.dtype, {eval(buffer.size)});
    return own;
  }
  void run(const kernel::Define& define) { integers_[define.name] = eval(define.value); }
  void run(const kernel::Let& let) { set(let.result, source(let.source, kernel_.scalar(let.result).dtype)); }
  void run(const kernel::Store& store) {
    if (!holds(store.guards)) return;
    Tensor& buffer = storage(store.buffer);
    const int64_t index = eval(store.index);
    ASSERT_TRUE(index >= 0 && index < buffer.count()) << "the kernel writes @" << kernel_.buffer(store.buffer).name << "[" << index << "]";
    Tensor value = get(store.value);
    if (store.combine != op::Combine::None) {
      Tensor old(buffer.dtype(), {});
      copy(old, 0, buffer, index);
      value = combine(store.combine, old, value);
    }
    copy(buffer, index, value, 0);
  }
  static Tensor combine(op::Combine how, const Tensor& a, const Tensor& b) {
    const char* names[] = {"", "add", "mul", "max", "min", "or", "and"};
    return apply(names[static_cast<size_t>(how)], {a, b});
  }
  static bool is_arg(op::Combine how) { return how == op::Combine::ArgMax || how == op::Combine::ArgMin; }
  // What is accumulated: sums of floats in f64.
  static DType accumulated(DType dtype) { return is_float(dtype) ? DType::F64 : dtype; }
  static Tensor identity(op::Combine how, DType dtype) {
    const double infinity = std::numeric_limits<double>::infinity();
    const bool low = how == op::Combine::Max || how == op::Combine::ArgMax, high = how == op::Combine::Min || how == op::Combine::ArgMin;
    if (how == op::Combine::Mul || how == op::Combine::And) return integer(DType::I64, 1).cast(dtype);
    if (low) return is_int(dtype) ? integer(dtype, is_unsigned_int(dtype) ? 0 : -(int64_t{1} << (dtype_bits(dtype) - 2)) * 2) : Tensor::scalar(dtype, dtype == DType::Bool ? 0 : -infinity);
    if (high && is_int(dtype)) return integer(dtype, is_unsigned_int(dtype) ? -1 : (int64_t{1} << (dtype_bits(dtype) - 2)) * 2 - 1);
    if (high) return Tensor::scalar(dtype, dtype == DType::Bool ? 1 : infinity);
    return Tensor::scalar(dtype, 0);
  }
  void run(const kernel::Reduce& reduce) {
    for (const kernel::Accumulator& accumulator : reduce.accumulators) {
      const bool arg = is_arg(accumulator.combine);
      const DType dtype = kernel_.scalar(arg ? accumulator.value : accumulator.result).dtype;
      running_[accumulator.result.index] = identity(accumulator.combine, accumulated(dtype));
      index_[accumulator.result.index] = -1;
      by_result_[accumulator.result.index] = &accumulator;
    }
    body(reduce.body);
    for (const kernel::Accumulator& accumulator : reduce.accumulators) {
      const Tensor& total = running_.at(accumulator.result.index);
      if (is_arg(accumulator.combine)) {
        set(accumulator.result, integer(DType::I64, std::max<int64_t>(0, index_.at(accumulator.result.index))));
        set(accumulator.value, total.cast(kernel_.scalar(accumulator.value).dtype));
      } else {
        set(accumulator.result, total.cast(kernel_.scalar(accumulator.result).dtype));
      }
    }
  }
  void run(const kernel::Accumulate& accumulate) {
    const kernel::Accumulator& accumulator = *by_result_.at(accumulate.accumulator.index);
    Tensor& running = running_.at(accumulate.accumulator.index);
    const Tensor value = get(accumulate.value).cast(running.dtype());
    if (!is_arg(accumulator.combine)) {
      running = combine(accumulator.combine, running, value);
      return;
    }
    int64_t& best = index_.at(accumulate.accumulator.index);
    const int64_t index = eval(accumulate.index);
    const double a = value.at(0), b = running.at(0);
    const bool wide = is_int(value.dtype());
    const bool nan = std::isnan(a), best_nan = std::isnan(b);
    bool better = accumulator.combine == op::Combine::ArgMax ? a > b : a < b, equal = a == b;
    if (wide) {
      better = accumulator.combine == op::Combine::ArgMax ? value.int_at(0) > running.int_at(0) : value.int_at(0) < running.int_at(0);
      equal = value.int_at(0) == running.int_at(0);
    }
    if (nan) better = !best_nan;
    if (nan && best_nan) equal = true;
    if (best_nan && !nan) better = equal = false;
    if (best < 0 || better || (equal && (accumulator.last_of_equals ? index > best : index < best))) {
      running = value;
      best = index;
    }
  }
  void run(const kernel::If& branch) {
    if (eval(branch.condition) != 0) body(branch.then);
  }
  void run(const kernel::Barrier&) {}
  void run(const kernel::Transpose& t) {
    const Tensor& source = buffers_[static_cast<size_t>(t.source.index)];
    Tensor& target = buffers_[static_cast<size_t>(t.target.index)];
    const int64_t from = eval(t.source_index), from_pitch = eval(t.source_pitch), to = eval(t.target_index), to_pitch = eval(t.target_pitch);
    for (int64_t r = 0; r < eval(t.rows); ++r) {
      for (int64_t c = 0; c < eval(t.columns); ++c) {
        const size_t bytes = static_cast<size_t>(dtype_bytes(source.dtype()));
        std::memcpy(target.as<char>() + (to + c * to_pitch + r) * static_cast<int64_t>(bytes),
                    static_cast<const char*>(source.data()) + (from + r * from_pitch + c) * static_cast<int64_t>(bytes), bytes);
      }
    }
  }
  void run(const kernel::Prefetch&) {}
  void run(const kernel::Contract& c) {
    const int64_t m_size = eval(c.m_size), n_size = eval(c.n_size), k_size = eval(c.k_size);
    const auto operand = [&](const kernel::Body& statements, kernel::ScalarId value, kernel::BufferId packed, const sym::Expr& offset,
                             int64_t row, int64_t k, int64_t tile) {
      if (packed.valid()) return buffers_[static_cast<size_t>(packed.index)].at(eval(offset) + row / tile * tile * k_size + k * tile + row % tile);
      body(statements);
      return get(value).at(0);
    };
    for (int64_t m = 0; m < m_size; ++m) {
      for (int64_t n = 0; n < n_size; ++n) {
        integers_[c.m_axis] = m;
        integers_[c.n_axis] = n;
        double sum = 0;
        for (int64_t k = 0; k < k_size; ++k) {
          integers_[c.k_axis] = k;
          sum += operand(c.lhs, c.lhs_value, c.lhs_packed, c.lhs_offset, m, k, c.tile_m) *
                 operand(c.rhs, c.rhs_value, c.rhs_packed, c.rhs_offset, n, k, c.tile_n);
        }
        set(c.accumulator, Tensor::scalar(c.dtype, sum));
        body(c.epilogue);
      }
    }
  }

  const kernel::Kernel& kernel_;
  std::vector<Tensor> buffers_, scalars_;
  std::array<int64_t, 3> thread_{};
  std::map<std::pair<int32_t, std::array<int64_t, 3>>, Tensor> locals_;
  std::map<std::string, int64_t> integers_;
  std::map<int32_t, Tensor> running_;
  std::map<int32_t, int64_t> index_;
  std::map<int32_t, const kernel::Accumulator*> by_result_;
};

}  // namespace fuseloom::emit
