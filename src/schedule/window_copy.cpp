#include "schedule/window_copy.h"

#include <fmt/format.h>

namespace fuseloom::schedule {

using graph::Graph;
using graph::Node;
using kernel::Binding;
using sym::Expr;

namespace {

std::vector<int64_t> attribute(const Node& node, std::string_view name, size_t spatial) {
  return node.attrs.integers(name, std::vector<int64_t>(spatial, 1));
}

bool is_pool(const Node& node) { return node.op->name != "conv"; }

std::vector<Expr> kernel_of(const Graph& graph, const Node& node) {
  std::vector<Expr> sizes = window_extents(graph, node);
  if (is_pool(node)) sizes.insert(sizes.begin(), 1);
  return sizes;
}

}  // namespace

Expr WindowCopy::reach(const Graph& graph, const Node& window, size_t axis) {
  const size_t spatial = graph.type(window.inputs[0]).shape.size() - 2;
  const Expr size = kernel_of(graph, window)[1 + axis];
  return sym::floor_div((size - 1) * attribute(window, "dilations", spatial)[axis], attribute(window, "strides", spatial)[axis]);
}

WindowCopy::WindowCopy(const Graph& graph, const Node& window, Expr row_limit, Expr column_limit)
    : graph_(graph), node_(window), x_(graph.type(window.inputs[0]).shape), spatial_(x_.size() - 2),
      pool_(is_pool(window)), kernel_(kernel_of(graph, window)), strides_(attribute(window, "strides", spatial_)),
      dilations_(attribute(window, "dilations", spatial_)),
      pads_(window.attrs.has("pads_low") ? window.attrs.shape("pads_low") : op::Shape(spatial_, 0)),
      row_limit_(std::move(row_limit)), column_limit_(std::move(column_limit)) {
  if (has_rows()) row_reach_ = reach(graph, window, row());
  column_reach_ = reach(graph, window, column());
}

Expr WindowCopy::phases(size_t axis) const { return kernel_[1 + axis].is_const(1) ? Expr(1) : Expr(strides_[axis]); }

std::pair<Expr, Expr> WindowCopy::split(size_t axis, const Expr& kernel_position) const {
  const Expr at = kernel_position * dilations_[axis];
  return {sym::floor_div(at, strides_[axis]), phases(axis).is_const(1) ? Expr(0) : sym::mod(at, strides_[axis])};
}

Expr WindowCopy::elements() const {
  Expr planes = kernel_[0] * phases(column());
  for (size_t d = 0; d + 2 < spatial_; ++d) planes = planes * kernel_[1 + d];
  if (has_rows()) planes = planes * phases(row());
  // The index of the last row's dropped positions reaches beyond the last plane.
  return planes * (row_limit_ + row_reach_) * pitch() + column_reach_;
}

Expr WindowCopy::position(std::span<const Expr> at) const {
  std::vector<Expr> folded(at.begin(), at.end());
  if (pool_) folded.insert(folded.begin(), 0);
  Expr plane = folded[0], shift = 0;
  for (size_t d = 0; d + 2 < spatial_; ++d) plane = plane * kernel_[1 + d] + folded[1 + d];
  if (has_rows()) {
    const auto [rows, phase] = split(row(), folded[1 + row()]);
    plane = plane * phases(row()) + phase;
    shift = rows * pitch();
  }
  const auto [columns, phase] = split(column(), folded[1 + column()]);
  plane = plane * phases(column()) + phase;
  return plane * ((row_limit_ + row_reach_) * pitch()) + shift + columns;
}

void WindowCopy::fill(LoopBuilder& build, kernel::BufferId buffer, const Index& result, const Expr& rows, const Expr& columns,
                      int32_t lanes) const {
  int loops = 0;
  const auto loop = [&](const std::string& name, const Expr& extent) {
    if (extent.is_const(1)) return Expr(0);
    build.open(name, 0, extent, Binding::Serial);
    ++loops;
    return Expr::symbol(name);
  };
  const DType dtype = build.kernel().buffer(buffer).dtype;
  const ScalarId padding = build.identity_of(node_.op->name == "max_pool" ? op::Combine::Max : op::Combine::Add, dtype);
  std::vector<Expr> folded(1 + spatial_, 0);
  folded[0] = loop("window_c_", kernel_[0]);
  for (size_t d = 0; d + 2 < spatial_; ++d) folded[1 + d] = loop(fmt::format("window_z{}_", d), kernel_[1 + d]);
  GuardedIndex at = window_read(graph_, node_, result, std::span<const Expr>(folded).subspan(pool_ ? 1 : 0));
  Expr inside = 1;
  for (size_t d = 0; d + 2 < spatial_; ++d) inside = inside * sym::le(0, at.index[2 + d]) * sym::lt(at.index[2 + d], x_[2 + d]);
  Expr place = folded[0];
  for (size_t d = 0; d + 2 < spatial_; ++d) place = place * kernel_[1 + d] + folded[1 + d];
  Expr row_phase = 0, row_at = 0;
  if (has_rows()) {
    row_phase = loop("window_py_", phases(row()));
    row_at = loop("window_y_", rows + row_reach_);
    const Expr y = (result[2 + row()] + row_at) * strides_[row()] + row_phase - pads_[row()];
    at.index[2 + row()] = build.name("window_row_", y);
    inside = inside * sym::le(0, at.index[2 + row()]) * sym::lt(at.index[2 + row()], x_[2 + row()]);
    place = place * phases(row()) + row_phase;
  }
  const size_t last = column();
  const Expr phase = loop("window_px_", phases(last));
  place = (place * phases(last) + phase) * (row_limit_ + row_reach_) + row_at;
  place = build.name("window_at_", place * pitch());
  // Columns [low, high) of the phase lie inside the input.
  const int64_t stride = strides_[last];
  const Expr count = columns + column_reach_, begin = result[2 + last];
  const Expr low = build.name("window_low_", sym::min(count, sym::max(0, sym::ceil_div(pads_[last] - phase, stride) - begin)));
  const Expr end = sym::max(low, sym::min(count, sym::ceil_div(x_[2 + last] + pads_[last] - phase, stride) - begin));
  const Expr high = build.name("window_high_", sym::select(inside, end, low));
  const auto store = [&](const Expr& column, ScalarId value) {
    build.append({kernel::Store{.buffer = buffer, .index = build.simplified(place + column), .value = value}});
  };
  const Expr x = Expr::symbol("window_x_");
  if (!low.is_const(0)) {
    build.open("window_x_", 0, low, Binding::Serial);
    store(x, padding);
    build.close();
  }
  build.open("window_x_", low, high, Binding::Vector, lanes, 1);
  at.index[2 + last] = (begin + x) * stride + phase - pads_[last];
  store(x, build.value_at(node_.inputs[0], at.index));
  build.close();
  build.open("window_x_", high, count, Binding::Serial);
  store(x, padding);
  build.close();
  for (; loops > 0; --loops) build.close();
}

}  // namespace fuseloom::schedule
