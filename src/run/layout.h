// What a loaded program needs to know to run with any sizes (Layout: made once) and with given sizes (Entry: made once per
// distinct input dims, A7). A call with known dims evaluates nothing: it copies pointers and launches.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "program/program.h"
#include "sym/evaluator.h"

namespace fuseloom::run {

// The integers a line needs, in order: Launch: sizes..., extent, scratch_bytes, work, bytes; Assert: condition.
// Other lines: none (their shapes are in the buffers).
std::vector<sym::Expr> line_expressions(const program::Line& line);

struct Layout {
  explicit Layout(const program::Program& program);

  std::vector<std::string> symbols;              // every symbol: bound by inputs and outer ones first, then defined ones
  std::map<std::string, size_t> symbol_index;
  size_t static_symbols = 0;                     // how many are known before the first line

  // Per line: where its integers start in Entry::line_values, or -1 when they depend on defined symbols.
  std::vector<int64_t> line_begin;
  std::vector<sym::Evaluator> line_evaluator;    // of the lines that depend on defined symbols
  sym::Evaluator static_lines;                   // all others, over the static symbols

  // Buffers. Sizes that depend on defined symbols are evaluated when needed.
  std::vector<char> is_static;                   // by buffer
  sym::Evaluator static_dims;                    // the dims of all static buffers, then the offsets of static views
  std::vector<int64_t> dims_begin;               // by buffer: where its dims are among the results; -1: dynamic
  std::vector<int64_t> offset_at;                // by buffer: where its view offset is; -1
  std::vector<sym::Evaluator> dynamic_dims;      // by buffer (dynamic ones): dims, then the view offset
  sym::Evaluator output_shapes;                  // of the outputs with static types: dims, strides, offset
  std::vector<int64_t> output_begin;             // -1: dynamic

  // Arena: slots are buffers, or several that share memory in place.
  std::vector<int32_t> slot_of;                  // by buffer; -1: not in the arena
  std::vector<int32_t> slot_order;               // placement order
  std::vector<std::vector<int32_t>> conflicts;   // by slot: slots placed before that live at the same time
  std::vector<program::LiveRange> slot_range;
  std::vector<int32_t> slot_buffer;              // a buffer of the slot, for its size
  std::vector<int32_t> result_of;                // by buffer: the output whose memory it is computed in; -1
  std::vector<std::vector<int32_t>> dying;       // by line: dynamic buffers whose last use it is
};

struct Entry {
  std::vector<int64_t> key;                      // dims of all inputs, then the outer symbols' values
  std::vector<int64_t> symbols;                  // values of the static symbols
  std::vector<int64_t> line_values;
  std::vector<int64_t> buffer_values;            // results of Layout::static_dims
  std::vector<int64_t> slot_offset, slot_bytes;
  int64_t arena_bytes = 0, lower_bound = 0;
  int64_t scratch_bytes = 0;                     // per worker, of the static launches
  std::vector<Dims> output_dims, output_strides; // of static outputs
  std::vector<int64_t> output_offset;
  mutable std::atomic<int64_t> last_used{0};
};

// Binds the symbols (B2), checks declared ranges, evaluates everything, places the slots.
// Throws UserError naming the input, the dimension with its symbolic size, expected and got.
void make_entry(const program::Program& program, const Layout& layout, Entry& entry);

}  // namespace fuseloom::run
