#include "program/line.h"
#include "program/program.h"

namespace fuseloom::program {

void remove_unused_constants(Program& program) {
  // 1. What is used; a view uses its base.
  std::vector<char> used(program.buffers.size(), 0);
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const BufferKind kind = program.buffer(storage_of(program, BufferId{static_cast<int32_t>(b)})).kind;
    used[b] = kind != BufferKind::Constant;
  }
  const auto use = [&](BufferId id) {
    for (; id.valid() && used[static_cast<size_t>(id.index)] == 0; id = program.buffer(id).base) used[static_cast<size_t>(id.index)] = 1;
  };
  for (const std::vector<Line>* lines : {&program.init, &program.lines}) {
    for (const Line& line : *lines) for_each_buffer(line, use);
  }
  for (const Output& output : program.outputs) use(output.buffer);

  // 2. New ids, in the old order, and constants without gaps.
  std::vector<BufferId> renamed(program.buffers.size());
  std::vector<Buffer> buffers;
  std::vector<Tensor> constants;
  const auto rename = [&](BufferId& id) {
    if (id.valid()) id = renamed[static_cast<size_t>(id.index)];
  };
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    if (used[b] == 0) continue;
    renamed[b] = BufferId{static_cast<int32_t>(buffers.size())};
    Buffer& buffer = buffers.emplace_back(std::move(program.buffers[b]));
    rename(buffer.base);
    if (buffer.kind != BufferKind::Constant) continue;
    constants.push_back(program.constants[static_cast<size_t>(buffer.index)]);
    buffer.index = static_cast<int32_t>(constants.size()) - 1;
  }
  program.buffers = std::move(buffers);
  program.constants = std::move(constants);

  // 3. Everybody who names one.
  for (std::vector<Line>* lines : {&program.init, &program.lines}) {
    for (Line& line : *lines) {
      for_each_buffer(line, rename);
      if (Launch* launch = std::get_if<Launch>(&line.what)) {
        for (auto& [written, read] : launch->in_place) {
          rename(written);
          rename(read);
        }
      }
    }
  }
  for (Output& output : program.outputs) rename(output.buffer);
  for (int32_t& index : program.placement_order) index = renamed[static_cast<size_t>(index)].index;
}

}  // namespace fuseloom::program
