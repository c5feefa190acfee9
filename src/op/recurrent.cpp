// lstm, gru, rnn: ONNX's recurrent layers.
//
//   x  [steps, batch, in]            w  [directions, gates * hidden, in]      b  [directions, 2 * gates * hidden]
//   h, c  [directions, batch, hidden]  r  [directions, gates * hidden, hidden]  p  [directions, 3 * hidden]
//   y  [steps, directions, batch, hidden]   y_h, y_c  [directions, batch, hidden]
//
// With layout = 1 the batch comes first everywhere: x [batch, steps, in], y [batch, steps, directions, hidden],
// states [batch, directions, hidden]. A sequence shorter than `steps` has zeros behind its end; in reverse it starts at
// its own last step. The references compute everything in f64.
//
// A layer becomes ordinary ops where that is possible: one product of x with w for all steps, and then either the steps
// written out (few of them), or recurrent_steps, whose kernel runs them in a loop (schedule/lower_recurrence.cpp).
#include "op/recurrent.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/lexer.h"
#include "op/decompose.h"
#include "op/schema.h"
#include "op/staging.h"

namespace fuseloom::op {
namespace {

using Kind = AttrSpec::Kind;

// ---- activations
// -----------------------------------------------------------------------------------------------------

struct ActivationKind {
  std::string_view name;
  double alpha, beta;  // defaults
  double (*function)(double x, double alpha, double beta);
  std::string_view rule;  // the same for kernels; {0} is x, {1} alpha, {2} beta
};

double sigmoid(double x, double, double) { return 1 / (1 + std::exp(-x)); }
double tanh_of(double x, double, double) { return std::tanh(x); }

constexpr ActivationKind kActivations[] = {
    {"affine", 1, 0, [](double x, double a, double b) { return a * x + b; }, "add(mul({1}, {0}), {2})"},
    {"elu", 1, 0, [](double x, double a, double) { return x >= 0 ? x : a * std::expm1(x); }, "select(ge({0}, 0), {0}, mul({1}, expm1({0})))"},
    {"hard_sigmoid", 0.2, 0.5, [](double x, double a, double b) { return std::clamp(a * x + b, 0.0, 1.0); }, "min(max(add(mul({1}, {0}), {2}), 0), 1)"},
    {"leaky_relu", 0.01, 0, [](double x, double a, double) { return x >= 0 ? x : a * x; }, "select(ge({0}, 0), {0}, mul({1}, {0}))"},
    {"relu", 0, 0, [](double x, double, double) { return x < 0 ? 0 : x; }, "max({0}, 0)"},
    {"scaled_tanh", 1, 1, [](double x, double a, double b) { return a * std::tanh(b * x); }, "mul({1}, tanh(mul({2}, {0})))"},
    {"sigmoid", 0, 0, sigmoid, "sigmoid({0})"},
    {"softplus", 0, 0, [](double x, double, double) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }, "softplus({0})"},
    {"softsign", 0, 0, [](double x, double, double) { return x / (1 + std::abs(x)); }, "softsign({0})"},
    {"tanh", 0, 0, tanh_of, "tanh({0})"},
    {"thresholded_relu", 1, 0, [](double x, double a, double) { return x >= a ? x : 0; }, "select(ge({0}, {1}), {0}, 0)"},
};

struct Activation {
  const ActivationKind* kind = nullptr;
  double alpha = 0, beta = 0, clip = 0;  // clip 0: none
  double operator()(double x) const {
    if (clip > 0) x = x < -clip ? -clip : x > clip ? clip : x;
    return kind->function(x, alpha, beta);
  }
  std::string rule() const {
    const std::string limit = base::format_double(clip);
    const std::string x = clip > 0 ? fmt::format("min(max(x0, -{}), {})", limit, limit) : "x0";
    return fmt::format(fmt::runtime(kind->rule), x, base::format_double(alpha), base::format_double(beta));
  }
  friend bool operator==(const Activation&, const Activation&) = default;
};

// The attribute `activations`, or the op's defaults for each direction. `fail` reports what is wrong.
template <class Fail>
std::vector<Activation> parse_activations(const Attrs& attrs, std::string_view defaults, int64_t directions,
                                          Fail&& fail) {
  std::string text = attrs.text("activations", "");
  if (text.empty()) {
    for (int64_t d = 0; d < directions; ++d) text += fmt::format("{}{}", d == 0 ? "" : ",", defaults);
  }
  const size_t expected = static_cast<size_t>(directions * (std::count(defaults.begin(), defaults.end(), ',') + 1));
  std::vector<Activation> result;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    const std::string_view name = std::string_view(text).substr(start, end - start);
    const auto* kind = std::find_if(std::begin(kActivations), std::end(kActivations),
                                    [&](const ActivationKind& candidate) { return candidate.name == name; });
    if (kind == std::end(kActivations)) {
      fail(fmt::format("there is no activation \"{}\"", name));
      return result;
    }
    result.push_back({.kind = kind, .alpha = kind->alpha, .beta = kind->beta, .clip = attrs.real("clip", 0)});
    start = end + 1;
  }
  if (result.size() != expected) fail(fmt::format("activations is \"{}\", expected {} names", text, expected));
  for (const char* name : {"alpha", "beta"}) {
    if (!attrs.has(name)) continue;
    const std::vector<double>& values = attrs.reals(name);
    if (values.size() != result.size()) {
      fail(fmt::format("{} has {} entries, expected one for each of the {} activations", name, values.size(),
                       result.size()));
      return result;
    }
    for (size_t i = 0; i < values.size(); ++i) (name[0] == 'a' ? result[i].alpha : result[i].beta) = values[i];
  }
  return result;
}

// ---- inference
// -------------------------------------------------------------------------------------------------------

struct CellKind {
  int64_t gates;
  std::string_view activations;  // of one direction
};
constexpr CellKind kLstm = {4, "sigmoid,tanh,tanh"}, kGru = {3, "sigmoid,tanh"}, kRnn = {1, "tanh"};

int64_t directions_of(const Attrs& attrs) { return attrs.text("direction") == "bidirectional" ? 2 : 1; }

// Their ranks; the lengths (input 4) are an index, all others have the type of the first.
void expect_inputs(const InferContext& context, const char* const (&names)[8], const int64_t (&ranks)[8]) {
  for (size_t i = 0; i < context.inputs.size(); ++i) {
    if (!context.has(i)) continue;
    expect_rank(context, names[i], context.in(i), ranks[i]);
    if (i == 4) {
      expect_index(context, names[i], context.in(i));
    } else {
      expect_dtype(context, names[i], context.in(i), context.in(0).dtype);
    }
  }
}

std::vector<TensorType> infer_recurrent(const InferContext& context, const CellKind& cell) {
  const TensorType &x = context.in(0), &r = context.in(2);
  const Attrs& attrs = context.attrs;
  expect_float(context, "x", x);
  const std::string direction = attrs.text("direction");
  expect_text(context, "direction", direction, {"forward", "reverse", "bidirectional"});
  const int64_t directions = directions_of(attrs);
  parse_activations(attrs, cell.activations, directions, [&](const std::string& words) { context.fail(words); });
  const bool batch_first = attrs.integer("layout", 0) != 0;
  const char* names[] = {"x", "w", "r", "b", "lengths", "h", "c", "p"};
  const int64_t ranks[] = {3, 3, 3, 2, 1, 3, 3, 2};
  expect_inputs(context, names, ranks);
  const sym::Expr steps = x.shape[batch_first ? 1 : 0], batch = x.shape[batch_first ? 0 : 1], hidden = r.shape[2];
  const Shape state = batch_first ? Shape{batch, directions, hidden} : Shape{directions, batch, hidden};
  const auto expect_shape = [&](size_t i, const Shape& shape) {
    if (!context.has(i)) return;
    for (size_t d = 0; d < shape.size(); ++d) {
      expect_size(context, fmt::format("dimension {} of {}", d, names[i]), context.in(i).shape[d], shape[d]);
    }
  };
  expect_shape(1, {directions, hidden * cell.gates, x.shape[2]});
  expect_shape(2, {directions, hidden * cell.gates, hidden});
  expect_shape(3, {directions, hidden * (2 * cell.gates)});
  expect_shape(4, {batch});
  expect_shape(5, state);
  expect_shape(6, state);
  expect_shape(7, {directions, hidden * 3});
  const Shape y = batch_first ? Shape{batch, steps, directions, hidden} : Shape{steps, directions, batch, hidden};
  std::vector<TensorType> types = {{x.dtype, y}};
  while (static_cast<int64_t>(types.size()) < context.output_count) types.push_back({x.dtype, state});
  return types;
}

// ---- the run over a sequence
// -------------------------------------------------------------------------------------------

// Eight partial sums in a fixed order, so that the compiler can vectorize without changing the result.
double dot(const double* a, const double* b, int64_t n) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int64_t j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

// result[j] = (initial[j]) + row j of matrix · vector
void multiply_rows(const double* matrix, const double* vector, int64_t rows, int64_t columns, const double* initial,
                   double* result) {
  for (int64_t j = 0; j < rows; ++j) {
    result[j] = (initial == nullptr ? 0 : initial[j]) + dot(matrix + j * columns, vector, columns);
  }
}

// The weights of one direction and the state of one sequence.
struct Cell {
  int64_t hidden = 0;
  const double *r = nullptr, *w_bias = nullptr, *r_bias = nullptr, *peephole = nullptr;  // null: absent
  std::span<const Activation> activations;
  bool input_forget = false, linear_before_reset = false;
  std::vector<double> h, c, scratch, reset;

  double recurrent_bias(int64_t j) const { return r_bias == nullptr ? 0 : r_bias[j]; }
};

// One step; gates[gates * hidden] holds w · x + w_bias on entry.
void step_rnn(Cell& cell, double* gates) {
  multiply_rows(cell.r, cell.h.data(), cell.hidden, cell.hidden, gates, cell.scratch.data());
  for (int64_t j = 0; j < cell.hidden; ++j) {
    cell.h[static_cast<size_t>(j)] = cell.activations[0](cell.scratch[static_cast<size_t>(j)] + cell.recurrent_bias(j));
  }
}

// Gates z (update), r (reset), h (candidate).
void step_gru(Cell& cell, double* gates) {
  const int64_t n = cell.hidden;
  const Activation &f = cell.activations[0], &g = cell.activations[1];
  double* sums = cell.scratch.data();
  multiply_rows(cell.r, cell.h.data(), 2 * n, n, gates, sums);
  for (int64_t j = 0; j < 2 * n; ++j) sums[j] = f(sums[j] + cell.recurrent_bias(j));
  const double *z = sums, *r = sums + n, *candidate_r = cell.r + 2 * n * n;
  double* candidate = sums + 2 * n;
  if (cell.linear_before_reset) {
    multiply_rows(candidate_r, cell.h.data(), n, n, nullptr, candidate);
    for (int64_t j = 0; j < n; ++j)
      candidate[j] = gates[2 * n + j] + r[j] * (candidate[j] + cell.recurrent_bias(2 * n + j));
  } else {
    for (int64_t j = 0; j < n; ++j) cell.reset[static_cast<size_t>(j)] = r[j] * cell.h[static_cast<size_t>(j)];
    multiply_rows(candidate_r, cell.reset.data(), n, n, gates + 2 * n, candidate);
    for (int64_t j = 0; j < n; ++j) candidate[j] += cell.recurrent_bias(2 * n + j);
  }
  for (int64_t j = 0; j < n; ++j) {
    double& h = cell.h[static_cast<size_t>(j)];
    h = (1 - z[j]) * g(candidate[j]) + z[j] * h;
  }
}

// Gates i (input), o (output), f (forget), c (candidate); peepholes in the order i, o, f.
void step_lstm(Cell& cell, double* gates) {
  const int64_t n = cell.hidden;
  const Activation &f = cell.activations[0], &g = cell.activations[1], &h = cell.activations[2];
  double* sums = cell.scratch.data();
  multiply_rows(cell.r, cell.h.data(), 4 * n, n, gates, sums);
  for (int64_t j = 0; j < 4 * n; ++j) sums[j] += cell.recurrent_bias(j);
  const auto peephole = [&](int64_t gate, int64_t j) {
    return cell.peephole == nullptr ? 0 : cell.peephole[gate * n + j];
  };
  for (int64_t j = 0; j < n; ++j) {
    double& c = cell.c[static_cast<size_t>(j)];
    const double input = f(sums[j] + peephole(0, j) * c);
    const double forget = cell.input_forget ? 1 - input : f(sums[2 * n + j] + peephole(2, j) * c);
    c = forget * c + input * g(sums[3 * n + j]);
    cell.h[static_cast<size_t>(j)] = f(sums[n + j] + peephole(1, j) * c) * h(c);
  }
}

std::vector<double> stage_optional(const ReferenceContext& context, size_t input) {
  return context.has(input) ? stage<double>(context.inputs[input]) : std::vector<double>();
}

using StepFn = void (*)(Cell&, double*);

// What the references of a whole layer and of its steps have in common: everything but where a step's gates come from.
struct Sequences {
  const ReferenceContext& context;
  const CellKind& kind;
  int64_t steps = 0, batch = 0, hidden = 0;
  std::vector<double> r, w_bias, r_bias;   // [directions, rows, hidden], [directions, rows]: absent where empty

  // `input(d, n, t, gates)` fills in w · x of step t of sequence n.
  template <class Input>
  void run(StepFn step, Input&& input) const {
    const Attrs& attrs = context.attrs;
    const bool batch_first = attrs.integer("layout", 0) != 0;
    const std::string direction = attrs.text("direction");
    const int64_t directions = directions_of(attrs), rows = kind.gates * hidden;
    const std::vector<double> h0 = stage_optional(context, 5), c0 = stage_optional(context, 6), p = stage_optional(context, 7);
    const std::vector<int64_t> lengths = context.has(4) ? stage<int64_t>(context.inputs[4]) : std::vector<int64_t>();
    for (const int64_t length : lengths) {
      FL_REQUIRE(length >= 0 && length <= steps, "{}: a sequence has length {}, expected 0 to {}", context.record->name, length, steps);
    }
    const std::vector<Activation> activations =
        parse_activations(attrs, kind.activations, directions, [](const std::string& words) { FL_CHECK(false, "{}", words); });
    const int64_t per_direction = static_cast<int64_t>(activations.size()) / directions;

    std::vector<double> y(static_cast<size_t>(steps * directions * batch * hidden), 0.0);
    std::vector<double> y_h(static_cast<size_t>(directions * batch * hidden)), y_c(y_h.size());
    std::vector<double> gates(static_cast<size_t>(rows));
    for (int64_t d = 0; d < directions; ++d) {
      const bool reverse = direction == "reverse" || d == 1;
      Cell cell{.hidden = hidden,
                .r = r.data() + d * rows * hidden,
                .w_bias = w_bias.empty() ? nullptr : w_bias.data() + d * rows,
                .r_bias = r_bias.empty() ? nullptr : r_bias.data() + d * rows,
                .peephole = p.empty() ? nullptr : p.data() + d * 3 * hidden,
                .activations = std::span<const Activation>(activations).subspan(static_cast<size_t>(d * per_direction), static_cast<size_t>(per_direction)),
                .input_forget = attrs.integer("input_forget", 0) != 0,
                .linear_before_reset = attrs.integer("linear_before_reset", 0) != 0};
      cell.scratch.resize(static_cast<size_t>(rows));
      cell.reset.resize(static_cast<size_t>(hidden));
      for (int64_t n = 0; n < batch; ++n) {
        const int64_t state = (batch_first ? n * directions + d : d * batch + n) * hidden;
        const auto initial = [&](const std::vector<double>& from) {
          if (from.empty()) return std::vector<double>(static_cast<size_t>(hidden), 0.0);
          return std::vector<double>(from.begin() + state, from.begin() + state + hidden);
        };
        cell.h = initial(h0);
        cell.c = initial(c0);
        const int64_t length = lengths.empty() ? steps : lengths[static_cast<size_t>(n)];
        for (int64_t i = 0; i < length; ++i) {
          const int64_t t = reverse ? length - 1 - i : i;
          input(cell, d, batch_first ? n * steps + t : t * batch + n, gates.data());
          step(cell, gates.data());
          const int64_t at = batch_first ? (n * steps + t) * directions + d : (t * directions + d) * batch + n;
          std::copy(cell.h.begin(), cell.h.end(), y.begin() + at * hidden);
        }
        std::copy(cell.h.begin(), cell.h.end(), y_h.begin() + state);
        std::copy(cell.c.begin(), cell.c.end(), y_c.begin() + state);
      }
    }
    unstage(y, context.outputs[0]);
    if (context.outputs.size() > 1) unstage(y_h, context.outputs[1]);
    if (context.outputs.size() > 2) unstage(y_c, context.outputs[2]);
  }
};

void reference_recurrent(const ReferenceContext& context, const CellKind& kind, StepFn step) {
  const bool batch_first = context.attrs.integer("layout", 0) != 0;
  const Tensor& x_tensor = context.inputs[0];
  const int64_t in = x_tensor.dim(2), hidden = context.inputs[2].dim(2), rows = kind.gates * hidden;
  const std::vector<double> x = stage<double>(x_tensor), w = stage<double>(context.inputs[1]), b = stage_optional(context, 3);
  Sequences sequences{.context = context, .kind = kind, .steps = x_tensor.dim(batch_first ? 1 : 0), .batch = x_tensor.dim(batch_first ? 0 : 1),
                      .hidden = hidden, .r = stage<double>(context.inputs[2])};
  for (int64_t d = 0; d < directions_of(context.attrs) && !b.empty(); ++d) {
    const auto first = b.begin() + d * 2 * rows;
    sequences.w_bias.insert(sequences.w_bias.end(), first, first + rows);
    sequences.r_bias.insert(sequences.r_bias.end(), first + rows, first + 2 * rows);
  }
  sequences.run(step, [&](const Cell& cell, int64_t d, int64_t position, double* gates) {
    multiply_rows(w.data() + d * rows * in, x.data() + position * in, rows, in, cell.w_bias, gates);
  });
}

// ---- the steps alone
// -------------------------------------------------------------------------------------------------------
//
//   gates  [steps, batch, directions * gates * hidden]    w · x and the biases, for all steps
//   r      the recurrent weights in panels (recurrent.h): all gates, but of a gru the first two
//   r_candidate, bias   gru: the third gate's weights, and its recurrent bias [directions, hidden] with linear_before_reset
// lengths, h, c and p as in the layer.

const CellKind& cell_of(const Attrs& attrs) {
  const std::string cell = attrs.text("cell");
  return cell == "lstm" ? kLstm : cell == "gru" ? kGru : kRnn;
}
int64_t first_gates(const CellKind& kind) { return kind.gates == 3 ? 2 : kind.gates; }

std::vector<TensorType> infer_steps(const InferContext& context) {
  const TensorType &gates = context.in(0), &r = context.in(1);
  const Attrs& attrs = context.attrs;
  expect_float(context, "gates", gates);
  expect_text(context, "cell", attrs.text("cell"), {"lstm", "gru", "rnn"});
  expect_text(context, "direction", attrs.text("direction"), {"forward", "reverse", "bidirectional"});
  const CellKind& kind = cell_of(attrs);
  const int64_t directions = directions_of(attrs);
  parse_activations(attrs, kind.activations, directions, [&](const std::string& words) { context.fail(words); });
  const char* names[] = {"gates", "r", "r_candidate", "bias", "lengths", "h", "c", "p"};
  const int64_t ranks[] = {3, 4, 4, 2, 1, 3, 3, 2};
  expect_inputs(context, names, ranks);
  if (context.has(2) != (kind.gates == 3)) context.fail("r_candidate is for the gru, which needs it");
  const bool batch_first = attrs.integer("layout", 0) != 0;
  const sym::Expr steps = gates.shape[batch_first ? 1 : 0], batch = gates.shape[batch_first ? 0 : 1], hidden = r.shape[2];
  const auto panels = [&](int64_t count) { return Shape{directions, sym::ceil_div(hidden * count, kRecurrentPanel), hidden, kRecurrentPanel}; };
  const Shape state = batch_first ? Shape{batch, directions, hidden} : Shape{directions, batch, hidden};
  const Shape expected[] = {gates.shape, panels(first_gates(kind)), panels(1), {directions, hidden}, {batch}, state, state, {directions, hidden * 3}};
  for (size_t i = 1; i < context.inputs.size(); ++i) {
    for (size_t d = 0; context.has(i) && d < expected[i].size(); ++d) {
      expect_size(context, fmt::format("dimension {} of {}", d, names[i]), context.in(i).shape[d], expected[i][d]);
    }
  }
  expect_size(context, "dimension 2 of gates", gates.shape[2], hidden * (directions * kind.gates));
  std::vector<TensorType> types = {{gates.dtype, batch_first ? Shape{batch, steps, directions, hidden} : Shape{steps, directions, batch, hidden}}};
  while (static_cast<int64_t>(types.size()) < context.output_count) types.push_back({gates.dtype, state});
  return types;
}

void reference_steps(const ReferenceContext& context) {
  const CellKind& kind = cell_of(context.attrs);
  const bool batch_first = context.attrs.integer("layout", 0) != 0;
  const Tensor& gates_tensor = context.inputs[0];
  const int64_t directions = directions_of(context.attrs), hidden = context.inputs[1].dim(2), rows = kind.gates * hidden;
  const std::vector<double> all = stage<double>(gates_tensor), bias = stage_optional(context, 3);
  Sequences sequences{.context = context, .kind = kind, .steps = gates_tensor.dim(batch_first ? 1 : 0), .batch = gates_tensor.dim(batch_first ? 0 : 1),
                      .hidden = hidden, .r = std::vector<double>(static_cast<size_t>(directions * rows * hidden))};
  if (!bias.empty()) sequences.r_bias.resize(static_cast<size_t>(directions * rows));
  for (size_t part = 1; part <= 2; ++part) {
    if (!context.has(part)) continue;
    const std::vector<double> panels = stage<double>(context.inputs[part]);
    const int64_t first = part == 1 ? 0 : 2 * hidden, columns = (part == 1 ? first_gates(kind) : 1) * hidden, count = context.inputs[part].dim(1);
    for (int64_t d = 0; d < directions; ++d) {
      for (int64_t c = 0; c < columns; ++c) {
        for (int64_t k = 0; k < hidden; ++k) {
          const int64_t from = ((d * count + c / kRecurrentPanel) * hidden + k) * kRecurrentPanel + c % kRecurrentPanel;
          sequences.r[static_cast<size_t>((d * rows + first + c) * hidden + k)] = panels[static_cast<size_t>(from)];
        }
      }
    }
  }
  for (int64_t d = 0; d < directions && !bias.empty(); ++d) {
    std::copy_n(bias.begin() + d * hidden, hidden, sequences.r_bias.begin() + d * rows + 2 * hidden);
  }
  sequences.run(kind.gates == 4 ? step_lstm : kind.gates == 3 ? step_gru : step_rnn, [&](const Cell&, int64_t d, int64_t position, double* gates) {
    std::copy_n(all.begin() + (position * directions + d) * rows, rows, gates);
  });
}

// ---- as other ops
// ------------------------------------------------------------------------------------------------------

constexpr int64_t kMostUnrolledSteps = 8;

class RecurrentDecomposition {
 public:
  RecurrentDecomposition(OpBuilder& builder, const DecomposeContext& context, const CellKind& kind)
      : builder_(builder), algebra_(builder), context_(context), kind_(kind), batch_first_(context.attrs.integer("layout", 0) != 0) {}

  // Empty: the layer stays what it is.
  std::vector<Val> build() {
    directions_ = directions_of(context_.attrs);
    const Shape x_shape = builder_.type(context_.inputs[0]).shape;
    const std::optional<int64_t> steps = x_shape[batch_first_ ? 1 : 0].as_const();
    batch_ = x_shape[batch_first_ ? 0 : 1];
    hidden_ = builder_.type(context_.inputs[2]).shape[2];
    if (!steps || *steps < 1 || *steps > kMostUnrolledSteps || context_.has(4) || !find_activations()) return with_steps();
    steps_ = *steps;
    const DType dtype = builder_.type(context_.inputs[0]).dtype;
    // x as [steps * batch, in]
    Val x = algebra_.wide(context_.inputs[0]);
    if (batch_first_) x = transpose(x, {1, 0, 2});
    x = builder_.reshape(x, {batch_ * steps_, x_shape[2]});

    const std::string direction = context_.attrs.text("direction");
    std::vector<Val> y, h, c;
    for (int64_t d = 0; d < directions_; ++d) {
      State state{.h = initial(5, d), .c = kind_.gates == 4 ? initial(6, d) : Val{}};
      std::vector<Val> each = run_direction(x, d, direction == "reverse" || d == 1, state);
      for (Val& value : each) value = builder_.reshape(value, {1, 1, batch_, hidden_});
      y.push_back(concat(each, 0));
      h.push_back(builder_.reshape(state.h, {1, batch_, hidden_}));
      if (state.c.valid()) c.push_back(builder_.reshape(state.c, {1, batch_, hidden_}));
    }
    std::vector<Val> results{concat(y, 1), concat(h, 0)};
    if (!c.empty()) results.push_back(concat(c, 0));
    for (size_t i = 0; i < results.size(); ++i) {
      if (batch_first_) results[i] = i == 0 ? transpose(results[i], {2, 0, 1, 3}) : transpose(results[i], {1, 0, 2});
      results[i] = builder_.cast(results[i], dtype);
    }
    return results;
  }

 private:
  struct State {
    Val h, c;   // [batch, hidden]
  };

  // Those that are ops without parameters.
  bool find_activations() {
    if (context_.attrs.real("clip", 0) != 0 || context_.attrs.has("alpha") || context_.attrs.has("beta")) return false;
    const std::vector<Activation> all =
        parse_activations(context_.attrs, kind_.activations, directions_, [](const std::string& words) { FL_CHECK(false, "{}", words); });
    for (const Activation& activation : all) {
      const std::string_view name = activation.kind->name;
      if (name != "sigmoid" && name != "tanh" && name != "relu") return false;
      activations_.push_back(name);
    }
    return true;
  }

  // The products with x for all steps, then recurrent_steps.
  std::vector<Val> with_steps() {
    const DType dtype = builder_.type(context_.inputs[0]).dtype;
    const Val x = algebra_.wide(context_.inputs[0]), w = algebra_.wide(context_.inputs[1]), r = algebra_.wide(context_.inputs[2]);
    const sym::Expr rows = hidden_ * kind_.gates;
    const bool reset_after = kind_.gates == 3 && context_.attrs.integer("linear_before_reset", 0) != 0;
    const Val flat_w = builder_.reshape(w, {rows * directions_, builder_.type(w).shape[2]});
    const Shape x_shape = builder_.type(x).shape;
    Val gates = matmul(builder_.reshape(x, {x_shape[0] * x_shape[1], x_shape[2]}), transpose(flat_w, {1, 0}));
    std::vector<Val> inputs(8);
    if (context_.has(3)) {
      const Val b = algebra_.wide(context_.inputs[3]);
      Val from_h = slice(b, 1, rows, rows);
      if (reset_after) {
        // The candidate's recurrent bias is added before the reset gate, which is inside the step.
        inputs[3] = slice(from_h, 1, hidden_ * 2, hidden_);
        from_h = pad_end(slice(from_h, 1, 0, hidden_ * 2), 1, hidden_);
      }
      gates = algebra_.add(gates, builder_.reshape(algebra_.add(slice(b, 1, 0, rows), from_h), {rows * directions_}));
    }
    inputs[0] = builder_.reshape(gates, {x_shape[0], x_shape[1], rows * directions_});
    inputs[1] = panels(slice(r, 1, 0, hidden_ * first_gates(kind_)), first_gates(kind_));
    if (kind_.gates == 3) inputs[2] = panels(slice(r, 1, hidden_ * 2, hidden_), 1);
    if (context_.has(4)) inputs[4] = context_.inputs[4];
    for (size_t i = 5; i < 8; ++i) {
      if (context_.has(i)) inputs[i] = algebra_.wide(context_.inputs[i]);
    }
    while (!inputs.back().valid()) inputs.pop_back();
    Attrs attrs = context_.attrs;
    attrs.set("cell", std::string(kind_.gates == 4 ? "lstm" : kind_.gates == 3 ? "gru" : "rnn"));
    std::vector<Val> results = builder_.apply_many("recurrent_steps", std::move(inputs), std::move(attrs), context_.output_count);
    for (Val& result : results) result = builder_.cast(result, dtype);
    return results;
  }
  // [directions, count * hidden, hidden] as panels (recurrent.h).
  Val panels(Val r, int64_t count) {
    const sym::Expr columns = hidden_ * count, panel_count = sym::ceil_div(columns, kRecurrentPanel);
    Val x = transpose(r, {0, 2, 1});
    const sym::Expr missing = panel_count * kRecurrentPanel - columns;
    if (!missing.is_const(0)) x = pad_end(x, 2, missing);
    return transpose(builder_.reshape(x, {directions_, hidden_, panel_count, kRecurrentPanel}), {0, 2, 1, 3});
  }

  Val pad_end(Val x, size_t axis, const sym::Expr& count) {
    const Shape none(builder_.type(x).shape.size(), 0);
    Shape high = none;
    high[axis] = count;
    return builder_.apply("pad", {x}, {{"low", none}, {"high", high}, {"mode", std::string("constant")}});
  }
  Val transpose(Val x, std::vector<int64_t> perm) { return builder_.apply("transpose", {x}, {{"perm", std::move(perm)}}); }
  Val concat(const std::vector<Val>& parts, int64_t axis) { return parts.size() == 1 ? parts[0] : builder_.apply("concat", parts, {{"axis", axis}}); }
  // Elements start ... start + size - 1 of one dimension.
  Val slice(Val x, size_t axis, const sym::Expr& start, const sym::Expr& size) {
    const Shape shape = builder_.type(x).shape;
    if (start.is_const(0) && shape[axis] == size) return x;
    Shape starts(shape.size(), 0), sizes = shape;
    starts[axis] = start;
    sizes[axis] = size;
    return builder_.apply("slice", {x}, {{"starts", starts}, {"sizes", sizes}, {"steps", std::vector<int64_t>(shape.size(), 1)}});
  }
  // Of an input [directions, a, b...], the part of one direction as [a, b...].
  Val of_direction(size_t input, int64_t d) {
    const Val x = slice(algebra_.wide(context_.inputs[input]), 0, d, 1);
    Shape shape = builder_.type(x).shape;
    shape.erase(shape.begin());
    return builder_.reshape(x, shape);
  }
  Val initial(size_t input, int64_t d) {
    if (!context_.has(input)) {
      const Val zero = builder_.scalar(compute_dtype(builder_.type(context_.inputs[0]).dtype), 0);
      return builder_.apply("expand", {zero}, {{"shape", Shape{batch_, hidden_}}});
    }
    const Val state = algebra_.wide(context_.inputs[input]);
    return builder_.reshape(slice(state, batch_first_ ? 1 : 0, d, 1), {batch_, hidden_});
  }
  Val matmul(Val a, Val b) { return builder_.apply("matmul", {a, b}); }
  Val activate(int64_t which, Val x) { return algebra_.unary(activation_[static_cast<size_t>(which)], x); }
  // Gates [first, first + count) of [batch, gates * hidden].
  Val gate(Val gates, int64_t first, int64_t count = 1) { return slice(gates, 1, hidden_ * first, hidden_ * count); }

  std::vector<Val> run_direction(Val x, int64_t d, bool reverse, State& state) {
    const size_t per_direction = activations_.size() / static_cast<size_t>(directions_);
    activation_ = std::span<const std::string_view>(activations_).subspan(static_cast<size_t>(d) * per_direction, per_direction);
    r_ = transpose(of_direction(2, d), {1, 0});   // [hidden, gates * hidden]
    Val from_x = matmul(x, transpose(of_direction(1, d), {1, 0}));
    recurrent_bias_ = {};
    if (context_.has(3)) {
      const Val bias = of_direction(3, d);
      const sym::Expr rows = hidden_ * kind_.gates;
      from_x = algebra_.add(from_x, slice(bias, 0, 0, rows));
      recurrent_bias_ = slice(bias, 0, rows, rows);
    }
    peephole_ = context_.has(7) ? of_direction(7, d) : Val{};
    std::vector<Val> each(static_cast<size_t>(steps_));
    for (int64_t i = 0; i < steps_; ++i) {
      const int64_t t = reverse ? steps_ - 1 - i : i;
      const Val gates = slice(from_x, 0, batch_ * t, batch_);
      if (kind_.gates == 4) step_lstm(gates, state);
      else if (kind_.gates == 3) step_gru(gates, state);
      else state.h = activate(0, with_state(gates, state.h, 0, 1));
      each[static_cast<size_t>(t)] = state.h;
    }
    return each;
  }
  // Gates [first, first + count): the part from x, that from h, and the recurrent bias.
  Val with_state(Val gates, Val h, int64_t first, int64_t count) {
    Val sum = algebra_.add(gate(gates, first, count), matmul(h, slice(r_, 1, hidden_ * first, hidden_ * count)));
    if (recurrent_bias_.valid()) sum = algebra_.add(sum, slice(recurrent_bias_, 0, hidden_ * first, hidden_ * count));
    return sum;
  }
  Val with_peephole(Val gate, int64_t which, Val c) {
    return peephole_.valid() ? algebra_.add(gate, algebra_.mul(slice(peephole_, 0, hidden_ * which, hidden_), c)) : gate;
  }
  void step_lstm(Val gates, State& state) {
    const Val sums = with_state(gates, state.h, 0, 4);
    const Val input = activate(0, with_peephole(gate(sums, 0), 0, state.c));
    const Val forget = context_.attrs.integer("input_forget", 0) != 0 ? algebra_.sub(algebra_.number(input, 1), input)
                                                                      : activate(0, with_peephole(gate(sums, 2), 2, state.c));
    state.c = algebra_.add(algebra_.mul(forget, state.c), algebra_.mul(input, activate(1, gate(sums, 3))));
    state.h = algebra_.mul(activate(0, with_peephole(gate(sums, 1), 1, state.c)), activate(2, state.c));
  }
  void step_gru(Val gates, State& state) {
    const Val both = activate(0, with_state(gates, state.h, 0, 2));
    const Val z = gate(both, 0), r = gate(both, 1);
    Val candidate;
    if (context_.attrs.integer("linear_before_reset", 0) != 0) {
      Val from_h = matmul(state.h, slice(r_, 1, hidden_ * 2, hidden_));
      if (recurrent_bias_.valid()) from_h = algebra_.add(from_h, slice(recurrent_bias_, 0, hidden_ * 2, hidden_));
      candidate = algebra_.add(gate(gates, 2), algebra_.mul(r, from_h));
    } else {
      candidate = with_state(gates, algebra_.mul(r, state.h), 2, 1);
    }
    state.h = algebra_.add(algebra_.mul(algebra_.sub(algebra_.number(z, 1), z), activate(1, candidate)), algebra_.mul(z, state.h));
  }

  OpBuilder& builder_;
  Algebra algebra_;
  const DecomposeContext& context_;
  const CellKind kind_;
  const bool batch_first_;
  int64_t steps_ = 1, directions_ = 1;
  sym::Expr batch_, hidden_;
  std::vector<std::string_view> activations_;            // of all directions
  std::span<const std::string_view> activation_;         // of the one that is being written
  Val r_, recurrent_bias_, peephole_;
};

void add_recurrent_op(OpTable& table, std::string name, std::string summary, const CellKind& kind,
                      StepFn step, int max_inputs, int max_outputs, std::vector<AttrSpec> more) {
  std::vector<AttrSpec> attrs = {required_attr("direction", Kind::Text), optional_attr("activations", Kind::Text),
                                 optional_attr("alpha", Kind::Reals),    optional_attr("beta", Kind::Reals),
                                 optional_attr("clip", Kind::Real),      optional_attr("layout", Kind::Integer)};
  attrs.insert(attrs.end(), more.begin(), more.end());
  table.add({.name = std::move(name),
             .family = Family::Composite,
             .summary = std::move(summary),
             .min_inputs = 3,
             .max_inputs = max_inputs,
             .max_outputs = max_outputs,
             .attrs = std::move(attrs),
             .infer = [kind](const InferContext& context) { return infer_recurrent(context, kind); },
             .reference = [kind, step](const ReferenceContext& context) { reference_recurrent(context, kind, step); },
             .decompose = [kind](OpBuilder& builder, const DecomposeContext& context) { return RecurrentDecomposition(builder, context, kind).build(); },
             .flops =
                 [kind](const InferContext& context, std::span<const TensorType>) {
                   const TensorType &x = context.in(0), &w = context.in(1), &r = context.in(2);
                   return x.shape[0] * x.shape[1] * (count_of(w.shape) + count_of(r.shape)) * 2;
                 }});
}

}  // namespace

std::vector<ScalarNode> recurrent_activations(const Attrs& attrs) {
  const int64_t directions = directions_of(attrs);
  const std::vector<Activation> all =
      parse_activations(attrs, cell_of(attrs).activations, directions, [](const std::string& words) { FL_CHECK(false, "{}", words); });
  const size_t count = all.size() / static_cast<size_t>(directions);
  if (!std::equal(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count), all.end() - static_cast<std::ptrdiff_t>(count))) return {};
  std::vector<ScalarNode> rules;
  for (size_t i = 0; i < count; ++i) rules.push_back(parse_scalar_rule(all[i].rule()));
  return rules;
}

void add_recurrent_ops(OpTable& table) {
  add_recurrent_op(table, "lstm", "ONNX's LSTM: gates input, output, forget, candidate", kLstm, step_lstm, 8, 3,
                   {optional_attr("input_forget", Kind::Integer)});
  add_recurrent_op(table, "gru", "ONNX's GRU: gates update, reset, candidate", kGru, step_gru, 6, 2,
                   {optional_attr("linear_before_reset", Kind::Integer)});
  add_recurrent_op(table, "rnn", "ONNX's RNN: h = f(w x + r h + b)", kRnn, step_rnn, 6, 2, {});
  table.add({.name = "recurrent_steps",
             .family = Family::Recurrence,
             .summary = "the steps of lstm, gru or rnn, from the products with x",
             .min_inputs = 2,
             .max_inputs = 8,
             .max_outputs = 3,
             .attrs = {required_attr("cell", Kind::Text), required_attr("direction", Kind::Text), optional_attr("activations", Kind::Text),
                       optional_attr("alpha", Kind::Reals), optional_attr("beta", Kind::Reals), optional_attr("clip", Kind::Real),
                       optional_attr("layout", Kind::Integer), optional_attr("input_forget", Kind::Integer),
                       optional_attr("linear_before_reset", Kind::Integer)},
             .infer = infer_steps,
             .reference = reference_steps});
}

}  // namespace fuseloom::op
