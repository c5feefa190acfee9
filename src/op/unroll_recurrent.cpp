// Recurrent layers of a few steps, written out: one product for the inputs of all steps, then one product and some algebra
// a step. Layers of many or unknown steps, with lengths of their own, peepholes or unusual activations stay whole.
#include <algorithm>

#include "op/decompose.h"

namespace fuseloom::op {

using sym::Expr;

namespace {

constexpr int64_t kMostSteps = 8;

class Unroller {
 public:
  Unroller(OpBuilder& builder, std::string_view cell, const DecomposeContext& context)
      : builder_(builder), algebra_(builder), cell_(cell), context_(context),
        gates_(cell == "lstm" ? 4 : cell == "gru" ? 3 : 1), batch_first_(context.attrs.integer("layout", 0) != 0) {}

  bool possible() const {
    const Attrs& attrs = context_.attrs;
    const Shape x = builder_.type(context_.inputs[0]).shape;
    const auto steps = x[batch_first_ ? 1 : 0].as_const();
    if (!steps || *steps < 1 || *steps > kMostSteps) return false;
    if (context_.has(4) || context_.has(7)) return false;   // lengths, peepholes
    if (attrs.has("clip") && attrs.real("clip") > 0) return false;
    if (attrs.integer("input_forget", 0) != 0) return false;
    return !attrs.has("activations") || attrs.text("activations").empty();
  }

  std::vector<Val> run() {
    Val x = algebra_.wide(context_.inputs[0]);
    if (batch_first_) x = transpose(x, {1, 0, 2});
    const Shape shape = builder_.type(x).shape;
    steps_ = *shape[0].as_const();
    batch_ = shape[1];
    hidden_ = builder_.type(context_.inputs[2]).shape[2];
    const std::string direction = context_.attrs.text("direction");
    const int64_t directions = direction == "bidirectional" ? 2 : 1;
    std::vector<std::vector<Val>> outputs(static_cast<size_t>(steps_));      // by step, then direction: [1, 1, batch, hidden]
    std::vector<Val> last_h, last_c;
    for (int64_t d = 0; d < directions; ++d) {
      const bool reverse = direction == "reverse" || d == 1;
      const Val w = of_direction(context_.inputs[1], d), r = of_direction(context_.inputs[2], d);
      Val w_bias, r_bias;
      if (context_.has(3)) {
        const Val bias = of_direction(context_.inputs[3], d);
        const Expr rows = hidden_ * gates_;
        w_bias = slice(bias, 0, 0, rows);
        r_bias = slice(bias, 0, rows, rows);
      }
      const Val inputs = product(x, w);                                      // [steps, batch, gates * hidden]
      Val h = initial(5, d), c = cell_ == "lstm" ? initial(6, d) : Val{};
      for (int64_t i = 0; i < steps_; ++i) {
        const int64_t t = reverse ? steps_ - 1 - i : i;
        Val input = builder_.reshape(slice(inputs, 0, t, 1), {batch_, hidden_ * gates_});
        if (w_bias.valid()) input = algebra_.add(input, w_bias);
        step(input, r, r_bias, h, c);
        outputs[static_cast<size_t>(t)].push_back(builder_.reshape(h, {1, 1, batch_, hidden_}));
      }
      last_h.push_back(builder_.reshape(h, {1, batch_, hidden_}));
      if (c.valid()) last_c.push_back(builder_.reshape(c, {1, batch_, hidden_}));
    }
    std::vector<Val> rows;
    for (const std::vector<Val>& step : outputs) rows.push_back(concat(step, 1));
    Val y = concat(rows, 0), y_h = concat(last_h, 0);
    if (batch_first_) {
      y = transpose(y, {2, 0, 1, 3});
      y_h = transpose(y_h, {1, 0, 2});
    }
    std::vector<Val> results{declared(y), declared(y_h)};
    if (!last_c.empty()) {
      Val y_c = concat(last_c, 0);
      if (batch_first_) y_c = transpose(y_c, {1, 0, 2});
      results.push_back(declared(y_c));
    }
    return results;
  }

 private:
  // One step: h, and c of an LSTM, become the next ones. `input` is w · x with its bias.
  void step(Val input, Val r, Val r_bias, Val& h, Val& c) {
    if (cell_ == "gru") return step_gru(input, r, r_bias, h);
    Val sums = algebra_.add(input, product(h, r));
    if (r_bias.valid()) sums = algebra_.add(sums, r_bias);
    if (cell_ == "rnn") {
      h = algebra_.unary("tanh", sums);
      return;
    }
    const Val in = algebra_.unary("sigmoid", gate(sums, 0)), out = algebra_.unary("sigmoid", gate(sums, 1));
    const Val forget = algebra_.unary("sigmoid", gate(sums, 2)), candidate = algebra_.unary("tanh", gate(sums, 3));
    c = algebra_.add(algebra_.mul(forget, c), algebra_.mul(in, candidate));
    h = algebra_.mul(out, algebra_.unary("tanh", c));
  }
  void step_gru(Val input, Val r, Val r_bias, Val& h) {
    const auto rows_of = [&](Val matrix, int64_t first, int64_t count) { return slice(matrix, 0, hidden_ * first, hidden_ * count); };
    Val sums = algebra_.add(slice(input, 1, 0, hidden_ * 2), product(h, rows_of(r, 0, 2)));
    if (r_bias.valid()) sums = algebra_.add(sums, rows_of(r_bias, 0, 2));
    const Val update = algebra_.unary("sigmoid", gate(sums, 0)), reset = algebra_.unary("sigmoid", gate(sums, 1));
    const bool linear = context_.attrs.integer("linear_before_reset", 0) != 0;
    Val recurrent = product(linear ? h : algebra_.mul(reset, h), rows_of(r, 2, 1));
    if (r_bias.valid()) recurrent = algebra_.add(recurrent, rows_of(r_bias, 2, 1));
    if (linear) recurrent = algebra_.mul(reset, recurrent);
    const Val candidate = algebra_.unary("tanh", algebra_.add(gate(input, 2), recurrent));
    h = algebra_.add(algebra_.mul(algebra_.sub(algebra_.number(update, 1), update), candidate), algebra_.mul(update, h));
  }

  Val gate(Val sums, int64_t which) { return slice(sums, 1, hidden_ * which, hidden_); }
  Val product(Val a, Val b) { return builder_.apply("matmul", {a, b}, {{"trans_b", int64_t{1}}}); }
  Val concat(const std::vector<Val>& parts, int64_t axis) { return parts.size() == 1 ? parts[0] : builder_.apply("concat", parts, {{"axis", axis}}); }
  Val transpose(Val x, std::vector<int64_t> order) { return builder_.apply("transpose", {x}, {{"perm", std::move(order)}}); }
  Val declared(Val x) { return builder_.cast(x, builder_.type(context_.inputs[0]).dtype); }
  Val slice(Val x, size_t axis, const Expr& first, const Expr& count) {
    Shape sizes = builder_.type(x).shape, starts(sizes.size(), 0);
    const std::vector<int64_t> steps(sizes.size(), 1);
    starts[axis] = first;
    sizes[axis] = count;
    return builder_.apply("slice", {x}, {{"starts", starts}, {"sizes", sizes}, {"steps", steps}});
  }
  // The part of a direction, without that dimension.
  Val of_direction(Val x, int64_t d) {
    Shape shape = builder_.type(x).shape;
    shape.erase(shape.begin());
    return algebra_.wide(builder_.reshape(slice(x, 0, d, 1), shape));
  }
  Val initial(size_t input, int64_t d) {
    if (context_.has(input)) {
      const Val state = batch_first_ ? transpose(context_.inputs[input], {1, 0, 2}) : context_.inputs[input];
      return of_direction(state, d);
    }
    const Val zero = builder_.scalar(compute_dtype(builder_.type(context_.inputs[0]).dtype), 0);
    return builder_.apply("expand", {zero}, {{"shape", Shape{batch_, hidden_}}});
  }

  OpBuilder& builder_;
  Algebra algebra_;
  std::string_view cell_;
  const DecomposeContext& context_;
  int64_t gates_ = 1, steps_ = 1;
  bool batch_first_ = false;
  Expr batch_ = 1, hidden_ = 1;
};

}  // namespace

std::vector<Val> decompose_recurrent(OpBuilder& builder, std::string_view cell, const DecomposeContext& context) {
  Unroller unroller(builder, cell, context);
  return unroller.possible() ? unroller.run() : std::vector<Val>();
}

}  // namespace fuseloom::op
