// Einsum as transposes, products and sums.
//
// 1. Each operand gets one dimension per label: repeated labels take the diagonal, an ellipsis becomes labels of its
// own
//    (aligned at the right), and a size of 1 that another operand has larger is dropped, as broadcasting wants.
// 2. Operands are combined from the left. A label that only one of the two has, and nothing later needs, is summed away
//    first. What both have and nothing later needs is contracted, by one matmul over [batch, rows, sum] and
//    [batch, sum, columns]; without such a label the product is elementwise.
// 3. The rest is summed and transposed to the output's order.
#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "base/check.h"
#include "front/onnx/node_import.h"

namespace fuseloom::front::onnx {
namespace {

using Label = int;  // a letter, or kEllipsis + position from the right
constexpr Label kEllipsis = 1000;
using Labels = std::vector<Label>;

struct Operand {
  ValueId value;
  Labels labels;  // one per dimension
};

bool contains(const Labels& labels, Label label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

// The labels of a term; -1 stands for the ellipsis.
Labels parse_term(const NodeImport& n, std::string_view term) {
  Labels labels;
  for (size_t i = 0; i < term.size(); ++i) {
    if (term[i] == '.') {
      if (term.substr(i, 3) != "..." || contains(labels, -1))
        n.fail(fmt::format("the term '{}' is not understood", term));
      labels.push_back(-1);
      i += 2;
    } else if (std::isalpha(static_cast<unsigned char>(term[i])) != 0) {
      labels.push_back(term[i]);
    } else {
      n.fail(fmt::format("the term '{}' is not understood", term));
    }
  }
  return labels;
}

Labels with_ellipsis(const Labels& labels, int64_t count) {
  Labels result;
  for (const Label label : labels) {
    if (label != -1) {
      result.push_back(label);
    } else {
      for (int64_t i = count; i-- > 0;) result.push_back(kEllipsis + static_cast<int>(i));
    }
  }
  return result;
}

// Where a label comes twice: keeps the places where both indices agree, and sums the second away.
void take_diagonals(NodeImport& n, Operand& operand) {
  for (size_t i = 0; i < operand.labels.size(); ++i) {
    for (size_t j = operand.labels.size(); j-- > i + 1;) {
      if (operand.labels[i] != operand.labels[j]) continue;
      const auto along = [&](size_t axis) {
        Shape shape(operand.labels.size(), Expr(1));
        shape[axis] = n.size(operand.value, static_cast<int64_t>(axis));
        return n.add("iota", {}, {{"shape", shape}, {"axis", static_cast<int64_t>(axis)}, {"dtype", DType::I64}});
      };
      const ValueId same = n.add("eq", {along(i), along(j)});
      const ValueId kept = n.add("select", {same, operand.value, n.like(operand.value, 0)});
      operand.value = n.reduce("reduce_sum", kept, {static_cast<int64_t>(j)}, false);
      operand.labels.erase(operand.labels.begin() + static_cast<std::ptrdiff_t>(j));
    }
  }
}

void sum_away(NodeImport& n, Operand& operand, const std::set<Label>& needed) {
  std::vector<int64_t> axes;
  Labels kept;
  for (size_t i = 0; i < operand.labels.size(); ++i) {
    if (needed.contains(operand.labels[i])) {
      kept.push_back(operand.labels[i]);
    } else {
      axes.push_back(static_cast<int64_t>(i));
    }
  }
  if (axes.empty()) return;
  operand.value = n.reduce("reduce_sum", operand.value, std::move(axes), false);
  operand.labels = std::move(kept);
}

// The operand with its dimensions in this order of its labels.
ValueId ordered(NodeImport& n, const Operand& operand, const Labels& order) {
  std::vector<int64_t> perm;
  for (const Label label : order)
    perm.push_back(std::find(operand.labels.begin(), operand.labels.end(), label) - operand.labels.begin());
  return n.transpose(operand.value, std::move(perm));
}

Operand multiply(NodeImport& n, Operand a, Operand b, const std::set<Label>& later) {
  std::set<Label> needed_a = later, needed_b = later;
  needed_a.insert(b.labels.begin(), b.labels.end());
  needed_b.insert(a.labels.begin(), a.labels.end());
  sum_away(n, a, needed_a);
  sum_away(n, b, needed_b);
  Labels batch, contracted, rows, columns;
  for (const Label label : a.labels)
    (!contains(b.labels, label) ? rows : later.contains(label) ? batch : contracted).push_back(label);
  for (const Label label : b.labels)
    if (!contains(a.labels, label)) columns.push_back(label);
  const auto join = [](std::initializer_list<const Labels*> lists) {
    Labels result;
    for (const Labels* list : lists) result.insert(result.end(), list->begin(), list->end());
    return result;
  };
  const ValueId left = ordered(n, a, join({&batch, &rows, &contracted}));
  const Shape left_shape = n.shape(left);
  if (contracted.empty()) {
    const ValueId right = ordered(n, b, join({&batch, &columns}));
    Shape left_aligned = left_shape, right_aligned = n.shape(right);
    left_aligned.insert(left_aligned.end(), columns.size(), Expr(1));
    right_aligned.insert(right_aligned.begin() + static_cast<std::ptrdiff_t>(batch.size()), rows.size(), Expr(1));
    return {n.add("mul", {n.reshape(left, left_aligned), n.reshape(right, right_aligned)}),
            join({&batch, &rows, &columns})};
  }
  const ValueId right = ordered(n, b, join({&batch, &contracted, &columns}));
  const Shape right_shape = n.shape(right);
  const auto count = [&](const Shape& shape, size_t begin, size_t size) {
    return n.simplify(sym::product(std::span(shape).subspan(begin, size)));
  };
  const size_t nb = batch.size(), nr = rows.size(), nk = contracted.size();
  Shape matrix_a(left_shape.begin(), left_shape.begin() + static_cast<std::ptrdiff_t>(nb)), matrix_b = matrix_a,
                                                                                            result = matrix_a;
  matrix_a.push_back(count(left_shape, nb, nr));
  matrix_a.push_back(count(left_shape, nb + nr, nk));
  matrix_b.push_back(matrix_a.back());
  matrix_b.push_back(count(right_shape, nb + nk, columns.size()));
  result.insert(result.end(), left_shape.begin() + static_cast<std::ptrdiff_t>(nb),
                left_shape.begin() + static_cast<std::ptrdiff_t>(nb + nr));
  result.insert(result.end(), right_shape.begin() + static_cast<std::ptrdiff_t>(nb + nk), right_shape.end());
  const ValueId product = n.add("matmul", {n.reshape(left, matrix_a), n.reshape(right, matrix_b)});
  return {n.reshape(product, result), join({&batch, &rows, &columns})};
}

void import_einsum(NodeImport& n) {
  std::string equation = n.text("equation", "");
  std::erase(equation, ' ');
  const size_t arrow = equation.find("->");
  std::string_view inputs = std::string_view(equation).substr(0, arrow);
  std::vector<Labels> parsed;
  for (size_t begin = 0; begin <= inputs.size();) {
    const size_t end = std::min(inputs.find(',', begin), inputs.size());
    parsed.push_back(parse_term(n, inputs.substr(begin, end - begin)));
    begin = end + 1;
  }
  if (parsed.size() != n.input_count())
    n.fail(fmt::format("'{}' has {} terms, and the node has {} inputs", equation, parsed.size(), n.input_count()));

  int64_t ellipsis = 0;
  std::vector<Operand> operands;
  for (size_t i = 0; i < parsed.size(); ++i) {
    const ValueId value = n.in(i);
    const int64_t extra = n.rank(value) - static_cast<int64_t>(parsed[i].size()) + (contains(parsed[i], -1) ? 1 : 0);
    if (extra < 0 || (extra > 0 && !contains(parsed[i], -1)))
      n.fail(fmt::format("input {} has rank {}, which does not fit '{}'", i, n.rank(value), equation));
    ellipsis = std::max(ellipsis, extra);
    operands.push_back({value, with_ellipsis(parsed[i], extra)});
  }
  Labels output;
  if (arrow != std::string::npos) {
    output = with_ellipsis(parse_term(n, std::string_view(equation).substr(arrow + 2)), ellipsis);
  } else {  // the ellipsis, then what comes once, in alphabetical order
    std::map<Label, int> uses;
    for (const Labels& labels : parsed)
      for (const Label label : labels) ++uses[label];
    output = with_ellipsis({-1}, ellipsis);
    for (const auto& [label, count] : uses)
      if (label != -1 && count == 1) output.push_back(label);
  }

  // Sizes of 1 next to larger ones broadcast: the label is dropped there.
  for (Operand& operand : operands) take_diagonals(n, operand);
  std::map<Label, Expr> sizes;
  for (const Operand& operand : operands)
    for (size_t i = 0; i < operand.labels.size(); ++i) {
      const Expr size = n.size(operand.value, static_cast<int64_t>(i));
      const auto [it, is_new] = sizes.emplace(operand.labels[i], size);
      if (!is_new && it->second.is_const(1)) it->second = size;
    }
  for (Operand& operand : operands) {
    std::vector<int64_t> ones;
    Labels kept;
    for (size_t i = 0; i < operand.labels.size(); ++i) {
      const bool one =
          n.size(operand.value, static_cast<int64_t>(i)).is_const(1) && !sizes.at(operand.labels[i]).is_const(1);
      if (one) {
        ones.push_back(static_cast<int64_t>(i));
      } else {
        kept.push_back(operand.labels[i]);
      }
    }
    operand.value = n.squeeze(operand.value, ones);
    operand.labels = std::move(kept);
  }
  for (const Label label : output)
    if (!sizes.contains(label)) n.fail(fmt::format("'{}' has a label in its output that no input has", equation));

  Operand result = operands[0];
  for (size_t i = 1; i < operands.size(); ++i) {
    std::set<Label> later(output.begin(), output.end());
    for (size_t j = i + 1; j < operands.size(); ++j) later.insert(operands[j].labels.begin(), operands[j].labels.end());
    result = multiply(n, std::move(result), operands[i], later);
  }
  sum_away(n, result, std::set<Label>(output.begin(), output.end()));
  n.out(ordered(n, result, output));
}

}  // namespace

void add_einsum_import(ImportTable& t) { t.add("Einsum", import_einsum); }

}  // namespace fuseloom::front::onnx
