// ONNX model → graph::Graph.
//
// Every operator of opset 1 to 27 is taken by meaning, at the version that the model's opset imports give it.
// Model-local functions are inlined. Shapes stay symbolic: a named dimension becomes a symbol of that name, an unnamed
// one gets a name of its own. Shape arithmetic (Shape → Gather → Concat → Reshape ...) is computed at import, as
// expressions; where a size really is data, the graph reads it with bind_symbols.
//
// Sequences and optionals exist at import only, as lists of tensors; a sequence whose length is not known then is
// Unsupported. Element types that fuseloom's DType lacks are carried in wider ones (tensor_proto.h).
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "front/onnx/proto.h"
#include "graph/graph.h"

namespace fuseloom::front::onnx {

inline constexpr int64_t kMaxOpset = 27;

struct ImportOptions {
  std::map<std::string, int64_t> dims;              // fixes named dimensions; the key is the name in the file
  std::map<std::string, int64_t> sequence_lengths;  // of graph inputs that are sequences
  // Ranks of inputs whose shape the file leaves out; by name, and name_i for the elements of a sequence.
  std::map<std::string, int64_t> ranks;
  // An optional input that is not listed is absent.
  std::vector<std::string> present_optionals;
  const op::OpTable* table = nullptr;  // nullptr: op::standard_ops()
};

// An input or output of the model. A tensor is one value of the graph; a sequence is `count` of them, an absent
// optional none.
struct ImportedValue {
  std::string name;                              // as in the file
  ElementType element = ElementType::Undefined;  // what the file says; may be narrower than the graph's dtype
  bool sequence = false;
  size_t first = 0, count = 1;  // positions in graph.inputs() or graph.outputs()
};

struct ImportedModel {
  graph::Graph graph;
  std::vector<ImportedValue> inputs, outputs;
  std::map<std::string, std::string> dimension_names;  // symbol → name in the file, where they differ
  std::map<std::string, std::string> metadata;
  std::string producer;  // "pytorch 2.11"
  int64_t opset = 0;     // of the default domain
};

// Throws UserError for a file that is not a valid model, Unsupported for one that goes beyond fuseloom; a model with
// unknown operators gives one error that lists all of them.
ImportedModel import_onnx(const std::string& path, const ImportOptions& options = {});
// From memory, which is copied as far as it is needed. External data is refused. `name` is for messages.
ImportedModel import_onnx_bytes(std::string_view bytes, const ImportOptions& options = {},
                                const std::string& name = "<bytes>");

}  // namespace fuseloom::front::onnx
