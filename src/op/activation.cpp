// Composite elementwise ops. Each is one line: its rule is its meaning, its reference, its inference and its kernel
// code.
#include "op/op.h"

namespace fuseloom::op {
namespace {

struct Row {
  const char* name;
  int inputs;
  std::vector<const char*> attrs;  // reals
  const char* rule;
  const char* summary;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> rows = {
      {"relu", 1, {}, "max(x0, 0)", "x where positive, else 0"},
      {"square", 1, {}, "mul(x0, x0)", "x * x"},
      {"clamp", 3, {}, "min(max(x0, x1), x2)", "x limited to low..high; high wins where low > high"},
      {"prelu", 2, {}, "select(ge(x0, 0), x0, mul(x0, x1))", "x where not negative, else slope * x"},
      {"leaky_relu", 1, {"alpha"}, "select(ge(x0, 0), x0, mul(alpha, x0))", "x where not negative, else alpha * x"},
      {"thresholded_relu", 1, {"alpha"}, "select(gt(x0, alpha), x0, 0)", "x where above alpha, else 0"},
      {"elu",
       1,
       {"alpha"},
       "select(gt(x0, 0), x0, mul(alpha, expm1(x0)))",
       "x where positive, else alpha * (exp(x) - 1)"},
      {"selu", 1, {"alpha", "gamma"}, "mul(gamma, select(gt(x0, 0), x0, mul(alpha, expm1(x0))))", "gamma * elu(x)"},
      {"celu",
       1,
       {"alpha"},
       "add(max(x0, 0), min(0, mul(alpha, expm1(div(x0, alpha)))))",
       "max(x, 0) + min(0, alpha * (exp(x / alpha) - 1))"},
      {"sigmoid", 1, {}, "reciprocal(add(1, exp(neg(x0))))", "1 / (1 + exp(-x))"},
      {"silu", 1, {}, "div(x0, add(1, exp(neg(x0))))", "x * sigmoid(x)"},
      {"swish", 1, {"alpha"}, "div(x0, add(1, exp(neg(mul(alpha, x0)))))", "x * sigmoid(alpha * x)"},
      {"gelu",
       1,
       {},
       "mul(mul(0.5, x0), add(1, erf(mul(x0, 0.7071067811865476))))",
       "x * Phi(x), Phi the normal distribution"},
      {"gelu_tanh",
       1,
       {},
       "div(x0, add(1, exp(mul(-1.5957691216057308, add(x0, mul(0.044715, mul(x0, mul(x0, x0))))))))",
       "gelu with Phi approximated by (1 + tanh(y)) / 2 = 1 / (1 + exp(-2 y)), y = sqrt(2 / pi) (x + 0.044715 x^3)"},
      {"hard_sigmoid",
       1,
       {"alpha", "beta"},
       "max(0, min(1, add(mul(alpha, x0), beta)))",
       "alpha * x + beta limited to 0..1"},
      {"hard_swish", 1, {}, "mul(x0, max(0, min(1, add(div(x0, 6), 0.5))))", "x * (x / 6 + 0.5 limited to 0..1)"},
      {"hard_tanh", 1, {"low", "high"}, "min(max(x0, low), high)", "x limited to low..high"},
      {"softplus", 1, {}, "add(max(x0, 0), log1p(exp(neg(abs(x0)))))", "log(1 + exp(x)), without overflow"},
      {"softsign", 1, {}, "div(x0, add(1, abs(x0)))", "x / (1 + |x|)"},
      {"mish", 1, {}, "mul(x0, tanh(softplus(x0)))", "x * tanh(softplus(x))"},
      {"shrink",
       1,
       {"bias", "lambd"},
       "select(lt(x0, neg(lambd)), add(x0, bias), select(gt(x0, lambd), sub(x0, bias), 0))",
       "x + bias below -lambd, x - bias above lambd, 0 between"},
  };
  return rows;
}

}  // namespace

void add_activation_ops(OpTable& table) {
  for (const Row& row : rows()) {
    OpRecord record{.name = row.name,
                    .family = Family::Elementwise,
                    .summary = row.summary,
                    .min_inputs = row.inputs,
                    .max_inputs = row.inputs,
                    .rule = row.rule};
    for (const char* attr : row.attrs) record.attrs.push_back({attr, AttrSpec::Kind::Real});
    table.add(std::move(record));
  }
}

}  // namespace fuseloom::op
