#include "program/program.h"

namespace fuseloom::program {

namespace {

std::vector<Line> clone_lines(const std::vector<Line>& lines) {
  std::vector<Line> out;
  for (const Line& line : lines) {
    Line copy{.what = Copy{}, .nodes = line.nodes, .origin = line.origin};
    if (const auto* launch = std::get_if<Launch>(&line.what)) {
      copy.what = *launch;
    } else if (const auto* call = std::get_if<Call>(&line.what)) {
      copy.what = *call;
    } else if (const auto* copied = std::get_if<Copy>(&line.what)) {
      copy.what = *copied;
    } else if (const auto* read = std::get_if<ReadSymbols>(&line.what)) {
      copy.what = *read;
    } else if (const auto* check = std::get_if<Assert>(&line.what)) {
      copy.what = *check;
    } else if (const auto* branch = std::get_if<If>(&line.what)) {
      copy.what = If{.condition = branch->condition,
                     .then = std::make_unique<Program>(clone(*branch->then)),
                     .otherwise = std::make_unique<Program>(clone(*branch->otherwise)),
                     .inputs = branch->inputs,
                     .outputs = branch->outputs,
                     .defines = branch->defines};
    } else if (const auto* loop = std::get_if<While>(&line.what)) {
      copy.what = While{.body = std::make_unique<Program>(clone(*loop->body)),
                        .trip_count = loop->trip_count,
                        .condition = loop->condition,
                        .inputs = loop->inputs,
                        .carried = loop->carried,
                        .scans = loop->scans,
                        .outputs = loop->outputs,
                        .defines = loop->defines};
    }
    out.push_back(std::move(copy));
  }
  return out;
}

}  // namespace

Program clone(const Program& program) {
  Program out;
  out.name = program.name;
  out.input_names = program.input_names;
  out.input_types = program.input_types;
  out.outer_symbols = program.outer_symbols;
  out.facts = program.facts;
  out.buffers = program.buffers;
  out.constants = program.constants;
  out.kernels = program.kernels;
  out.init = clone_lines(program.init);
  out.lines = clone_lines(program.lines);
  out.outputs = program.outputs;
  out.placement_order = program.placement_order;
  return out;
}

}  // namespace fuseloom::program
