// Memory planning problems and plans as comma-separated values, one buffer a line:
//
//   id,lower,upper,size            columns in any order, named in the first line; these four are required
//   b1,0,3,4
//   "b,2",3,9,4                    a field may be quoted; "" within quotes is one quote
//
// Optional columns; an empty field means that the buffer has none:
//   alignment        bytes
//   preferred_size   bytes
//   gaps             "3-5 7-8": steps [3, 5) and [7, 8)
//   may_share_with   ids separated by spaces
//   offset           bytes; given for every buffer or for none
//   in_place_of      id of the buffer whose storage was taken over; needs offset
//   granted_size     bytes; needs offset
//
// Lines end in LF or CRLF; blank lines and a byte-order mark are skipped.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "program/plan/problem.h"

namespace fuseloom::program::plan {

struct PlanFile {
  Problem problem;
  std::optional<Solution> solution;  // where the file has an offset column; not validated
};

// Throws UserError "<file>:<line>: ... expected ..., got ..." for text that is not as above, or whose problem is not
// well-formed. `file` is only a name for messages.
PlanFile parse_csv(std::string_view text, std::string_view file);

// Reads the file at `path` (UserError when that fails) and parses it.
PlanFile read_csv(const std::string& path);

// The inverse: parse_csv(to_csv(p, s)) gives p and s back, but for the capacity and the problem's alignment, which a
// file has no place for: every buffer's alignment is written out where it is not 1. Columns that no buffer uses are
// left out.
std::string to_csv(const Problem& problem, const Solution* solution = nullptr);

}  // namespace fuseloom::program::plan
