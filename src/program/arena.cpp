#include <optional>

#include "program/program.h"

namespace fuseloom::program {
namespace {

// Temporaries that are a result by themselves, or through a view of all of their elements.
std::vector<char> whole_results(const Program& program) {
  std::vector<char> results(program.buffers.size(), 0);
  for (const Output& output : program.outputs) {
    if (output.strides) continue;
    const BufferId storage = storage_of(program, output.buffer);
    const Buffer &held = program.buffer(storage), &seen = program.buffer(output.buffer);
    const bool whole = storage == output.buffer ||
                       (seen.offset.is_const(0) && seen.type.dtype == held.type.dtype &&
                        sym::prove_equal(op::count_of(seen.type.shape), op::count_of(held.type.shape), program.facts) == sym::Proof::Yes);
    if (whole) results[static_cast<size_t>(storage.index)] = 1;
  }
  return results;
}

// Whether the launch sees the buffer through another argument too, a view, which it may read elsewhere than it writes.
bool reads_twice(const Program& program, const Launch& launch, BufferId read) {
  int count = 0;
  for (const BufferId id : launch.buffers) count += storage_of(program, id) == read ? 1 : 0;
  return count > 1;
}

}  // namespace

std::vector<ArenaSlot> arena_slots(const Program& program) {
  // 1. The buffers that live in the arena, by the line that writes them.
  const std::vector<LiveRange> ranges = live_ranges(program);
  const std::vector<char> planned = planned_buffers(program), results = whole_results(program);
  std::vector<std::vector<BufferId>> born(program.lines.size());
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    if (planned[i] == 0 || results[i] != 0 || ranges[i].first < 0) continue;
    born[static_cast<size_t>(ranges[i].first)].push_back(BufferId{static_cast<int32_t>(i)});
  }
  // 2. Line by line: a buffer takes over the slot of one that its launch reads last, if the launch allows it, or gets a
  //    new one. A slot that has been taken over ends in its taker, so that nobody else takes it on the same line.
  std::vector<ArenaSlot> slots;
  std::vector<int32_t> slot_of(program.buffers.size(), -1);
  const auto donor_of = [&](BufferId id, int32_t line) -> std::optional<int32_t> {
    const Launch* launch = std::get_if<Launch>(&program.lines[static_cast<size_t>(line)].what);
    if (launch == nullptr) return std::nullopt;
    for (const auto& [written, read] : launch->in_place) {
      const int32_t slot = written == id && read != id ? slot_of[static_cast<size_t>(read.index)] : -1;
      if (slot < 0) continue;
      const ArenaSlot& donor = slots[static_cast<size_t>(slot)];
      if (donor.buffers.back() == read && donor.range.last == line && !reads_twice(program, *launch, read)) return slot;
    }
    return std::nullopt;
  };
  for (size_t line = 0; line < born.size(); ++line) {
    for (const BufferId id : born[line]) {
      const LiveRange& range = ranges[static_cast<size_t>(id.index)];
      const std::optional<int32_t> donor = donor_of(id, range.first);
      slot_of[static_cast<size_t>(id.index)] = donor.value_or(static_cast<int32_t>(slots.size()));
      if (!donor) {
        slots.push_back({.buffers = {id}, .range = range});
        continue;
      }
      ArenaSlot& slot = slots[static_cast<size_t>(*donor)];
      slot.buffers.push_back(id);
      slot.range.last = range.last;
    }
  }
  return slots;
}

}  // namespace fuseloom::program
