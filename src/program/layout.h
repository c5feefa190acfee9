// What an executor of a program decides before it knows any sizes: where symbols come from, what has memory of its own, and
// when memory is taken and given back. The interpreter and the generated code follow the same layout.
//
// Stages. A symbol of the inputs, or of the enclosing program, belongs to stage 0; the k-th line that defines symbols opens
// stage k. An expression belongs to the latest stage of its symbols: it can be computed when that stage is open.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "program/program.h"

namespace fuseloom::program {

// How a symbol of stage 0 gets its value. In order: an earlier one may be used to solve for a later one.
struct SymbolBinding {
  std::string symbol;
  int32_t outer = -1;                    // the enclosing program's: which of outer_symbols; else
  int32_t input = -1, dimension = -1;    // a size of an input: it is the value, or
  std::optional<sym::Expr> solution;     // the value is this expression of earlier symbols and of `size_name`, the size
  std::string size_name;
};

struct Storage {
  enum class Place : uint8_t {
    Arena,    // at an offset that follows from the sizes
    Result,   // in the memory of result `index`
    Dynamic,  // taken when its producing line runs; with an index, in the memory of that result if there is some
    Input,    // the tensor of input `index`
    Fixed,    // constants and prepared buffers: lives as long as the program
  };
  BufferId buffer;      // the first of its buffers
  Place place = Place::Fixed;
  int32_t index = -1;
  int32_t first = -1, last = -1;   // lines
};

struct Layout {
  std::vector<SymbolBinding> bindings;
  std::vector<int32_t> opens;                      // by line: the stage it opens, or 0
  std::vector<char> used;                          // by buffer: somebody reads or writes it, or a view of it
  std::vector<Storage> storages;
  std::vector<int32_t> storage;                    // by buffer; -1: not used
  std::vector<int32_t> direct;                     // by output: the storage that is computed in its memory, or -1
  std::vector<std::vector<int32_t>> births;        // by line: dynamic storages whose memory is taken before it ...
  std::vector<std::vector<int32_t>> deaths;        // ... and given back after it
  std::vector<int32_t> placement;                  // the arena's storages, in the order in which first fit places them

  int32_t stage_of(const sym::Expr& expr) const;
  int32_t stage_of(const op::Shape& shape) const;
  const Storage& storage_of(BufferId id) const { return storages[static_cast<size_t>(storage[static_cast<size_t>(id.index)])]; }

  std::unordered_map<std::string, int32_t> stages;  // by symbol
};

// Throws UserError when the sizes of the inputs do not determine a symbol.
Layout layout_of(const Program& program);

// The distance of a view from the start of its storage, in bytes.
sym::Expr byte_offset(const Program& program, BufferId id);

}  // namespace fuseloom::program
