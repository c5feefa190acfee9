#include "program/line.h"
#include "program/program.h"

namespace fuseloom::program {
namespace {

std::unique_ptr<Program> clone(const std::unique_ptr<Program>& nested) {
  return nested == nullptr ? nullptr : std::make_unique<Program>(clone(*nested));
}

Line clone(const Line& line) {
  using What = decltype(line.what);
  return {.what = std::visit(Overloaded{
                                 [](const If& branch) -> What {
                                   return If{.condition = branch.condition,
                                             .then = clone(branch.then),
                                             .otherwise = clone(branch.otherwise),
                                             .inputs = branch.inputs,
                                             .outputs = branch.outputs,
                                             .defines = branch.defines};
                                 },
                                 [](const While& loop) -> What {
                                   return While{.body = clone(loop.body),
                                                .trip_count = loop.trip_count,
                                                .condition = loop.condition,
                                                .inputs = loop.inputs,
                                                .carried = loop.carried,
                                                .scans = loop.scans,
                                                .outputs = loop.outputs,
                                                .defines = loop.defines};
                                 },
                                 [](const auto& plain) -> What { return plain; },
                             },
                             line.what),
          .nodes = line.nodes,
          .origin = line.origin};
}

std::vector<Line> clone(const std::vector<Line>& lines) {
  std::vector<Line> copies;
  for (const Line& line : lines) copies.push_back(clone(line));
  return copies;
}

}  // namespace

Program clone(const Program& program) {
  return {.name = program.name,
          .device = program.device,
          .input_names = program.input_names,
          .input_types = program.input_types,
          .outer_symbols = program.outer_symbols,
          .facts = program.facts,
          .buffers = program.buffers,
          .constants = program.constants,
          .kernels = program.kernels,
          .init = clone(program.init),
          .lines = clone(program.lines),
          .outputs = program.outputs,
          .placement_order = program.placement_order};
}

}  // namespace fuseloom::program
