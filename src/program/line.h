// What every kind of line has in common: the buffers it touches and the symbols it defines.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "program/program.h"

namespace fuseloom::program {

// std::visit with one lambda for each kind of line.
template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

// Every buffer that the line reads or writes, in the order of the text; absent ones left out.
std::vector<BufferId> buffers_of(const Line& line);

// The symbols the line gives values to.
std::span<const std::string> defines_of(const Line& line);

// The buffers that have a place in the arena, ascending: planned temporaries that a line names, but not those that are
// a result of the program, which are written to memory that the caller keeps.
std::vector<int32_t> placed_buffers(const Program& program);

}  // namespace fuseloom::program
