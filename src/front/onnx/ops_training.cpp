// The optimizers of ai.onnx.preview.training: elementwise updates of tensors, given in groups (all X, all gradients,
// ...).
#include "base/check.h"
#include "front/onnx/node_import.h"

namespace fuseloom::front::onnx {
namespace {

// Imports one tensor's update: from (x, gradient, states...) to (new x, new states...).
using Update =
    std::function<std::vector<ValueId>(NodeImport&, ValueId rate, ValueId step, const std::vector<ValueId>&)>;

// Inputs: rate, step, then `group` tensors for each of the tensors to update, grouped by role.
ImportFn optimizer(size_t group, Update update) {
  return [=](NodeImport& n) {
    if (n.input_count() < 2 + group || (n.input_count() - 2) % group != 0)
      n.fail(fmt::format("has {} inputs; expected the rate, the step and {} for each tensor", n.input_count(), group));
    const size_t count = (n.input_count() - 2) / group;
    for (size_t i = 0; i < count; ++i) {
      std::vector<ValueId> tensors;
      for (size_t role = 0; role < group; ++role) tensors.push_back(n.in(2 + role * count + i));
      const std::vector<ValueId> results = update(n, n.cast(n.in(0), n.dtype(tensors[0])), n.in(1), tensors);
      for (size_t role = 0; role < results.size(); ++role) n.out(role * count + i, results[role]);
    }
  };
}

ValueId scaled(NodeImport& n, ValueId x, double by) { return n.add("mul", {x, n.like(x, by)}); }

ValueId regularized(NodeImport& n, ValueId x, ValueId gradient) {
  return n.add("add", {scaled(n, x, n.real("norm_coefficient", 0)), gradient});
}

std::vector<ValueId> momentum(NodeImport& n, ValueId rate, ValueId step, const std::vector<ValueId>& t) {
  const ValueId x = t[0], gradient = regularized(n, x, t[1]);
  const double alpha = n.real("alpha", 0), beta = n.real("beta", 0);
  const ValueId first = n.add("eq", {step, n.like(step, 0)});
  const ValueId weight = n.add("select", {first, n.like(x, 1), n.like(x, beta)});
  const ValueId v = n.add("add", {scaled(n, t[2], alpha), n.add("mul", {gradient, weight})});
  const std::string mode = n.text("mode", "standard");
  if (mode != "standard" && mode != "nesterov") n.fail(fmt::format("mode '{}' is neither standard nor nesterov", mode));
  const ValueId direction = mode == "nesterov" ? n.add("add", {gradient, scaled(n, v, alpha)}) : v;
  return {n.add("sub", {x, n.add("mul", {rate, direction})}), v};
}

std::vector<ValueId> adagrad(NodeImport& n, ValueId rate, ValueId step, const std::vector<ValueId>& t) {
  const ValueId x = t[0], gradient = regularized(n, x, t[1]);
  const ValueId decay = n.add("add", {scaled(n, n.cast(step, n.dtype(x)), n.real("decay_factor", 0)), n.like(x, 1)});
  const ValueId h = n.add("add", {t[2], n.add("mul", {gradient, gradient})});
  const ValueId root = n.add("add", {n.add("sqrt", {h}), n.like(x, n.real("epsilon", 1e-6))});
  const ValueId move = n.add("div", {n.add("mul", {n.add("div", {rate, decay}), gradient}), root});
  return {n.add("sub", {x, move}), h};
}

std::vector<ValueId> adam(NodeImport& n, ValueId rate, ValueId step, const std::vector<ValueId>& t) {
  const ValueId x = t[0], gradient = regularized(n, x, t[1]);
  const double alpha = n.real("alpha", 0.9), beta = n.real("beta", 0.999);
  const ValueId v = n.add("add", {scaled(n, t[2], alpha), scaled(n, gradient, 1 - alpha)});
  const ValueId h = n.add("add", {scaled(n, t[3], beta), scaled(n, n.add("mul", {gradient, gradient}), 1 - beta)});
  const ValueId root = n.add("add", {n.add("sqrt", {h}), n.like(x, n.real("epsilon", 1e-6))});
  const ValueId time = n.cast(step, n.dtype(x));
  const auto bias = [&](double base) { return n.add("sub", {n.like(x, 1), n.add("pow", {n.like(x, base), time})}); };
  const ValueId corrected = n.add("div", {n.add("mul", {rate, n.add("sqrt", {bias(beta)})}), bias(alpha)});
  const ValueId started = n.add("gt", {step, n.like(step, 0)});
  const ValueId adjusted = n.add("select", {started, corrected, rate});
  const ValueId moved = n.add("sub", {x, n.add("mul", {adjusted, n.add("div", {v, root})})});
  return {scaled(n, moved, 1 - n.real("norm_coefficient_post", 0)), v, h};
}

}  // namespace

void add_training_imports(ImportTable& t) {
  const std::string domain = "ai.onnx.preview.training";
  t.add(domain, "Momentum", optimizer(3, momentum));
  t.add(domain, "Adagrad", optimizer(3, adagrad));
  t.add(domain, "Adam", optimizer(4, adam));
}

}  // namespace fuseloom::front::onnx
