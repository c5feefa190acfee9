#include <set>

#include "program/line.h"
#include "program/program.h"

namespace fuseloom::program {

std::vector<LiveRange> live_ranges(const Program& program) {
  std::vector<LiveRange> ranges(program.buffers.size());
  const auto range_of = [&](BufferId id) -> std::pair<LiveRange&, BufferKind> {
    const BufferId storage = storage_of(program, id);
    return {ranges[static_cast<size_t>(storage.index)], program.buffer(storage).kind};
  };
  for (size_t i = 0; i < program.lines.size(); ++i) {
    const int32_t line = static_cast<int32_t>(i);
    for (const BufferId id : buffers_of(program.lines[i])) {
      const auto [range, kind] = range_of(id);
      // The write comes before every read, so the first line that names a Temporary writes it. Nothing else is written.
      if (range.first < 0 && kind == BufferKind::Temporary) range.first = line;
      range.last = line;
    }
  }
  for (const Output& output : program.outputs) {
    const auto [range, kind] = range_of(output.buffer);
    range.last = static_cast<int32_t>(program.lines.size());
  }
  return ranges;
}

std::vector<char> planned_buffers(const Program& program) {
  std::set<std::string> defined;
  for (const Line& line : program.lines) {
    for (const std::string& symbol : defines_of(line)) defined.insert(symbol);
  }
  std::vector<char> planned;
  for (const Buffer& buffer : program.buffers) {
    std::set<std::string> needed;
    for (const sym::Expr& size : buffer.type.shape) sym::collect_symbols(size, needed);
    bool known = buffer.kind == BufferKind::Temporary;
    for (const std::string& symbol : needed) known = known && defined.count(symbol) == 0;
    planned.push_back(known ? 1 : 0);
  }
  return planned;
}

}  // namespace fuseloom::program
