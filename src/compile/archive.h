// Graph → .floom archive (docs/archive.md).
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compile/pipeline.h"
#include "program/archive.h"

namespace fuseloom::compile {

// "portable": every instruction set of this architecture; otherwise the one of that name, "native" being that of this machine.
// Empty when the name is not known.
std::vector<build::Isa> parse_isas(std::string_view name);

struct ArchiveOptions {
  std::vector<build::Isa> isas = {build::Isa::Native};
  // Store packed weights, so that loading packs nothing. Absent: where there is one target; several share the raw weights, and
  // each packs its own when it is loaded. Weights are packed for what runs on this machine only.
  std::optional<bool> prepare;
  std::vector<std::string> input_names, output_names;   // as callers know them; empty: those of the graph
  bool documents = true;               // the graph, for `inspect` and `verify`, and what the compiler made of it
};

// What goes into the archive. Takes the graph. Options.isa, .threads and .run have no meaning here.
program::ArchiveContents make_archive(graph::Graph graph, const Options& options, const ArchiveOptions& archive, Report& report);

// Makes the archive and publishes it in one step: readers of `path` see the old file or the whole new one.
Report write_archive(graph::Graph graph, const std::string& path, const Options& options = {}, const ArchiveOptions& archive = {});

// The names of an archive's documents.
inline constexpr std::string_view kImportedGraphDocument = "graph.imported";
inline constexpr std::string_view kGraphDocument = "graph";          // after the passes; the program's buffers are named after its values
// Of each instruction set: "groups.avx2", ...
std::string document_name(std::string_view stage, build::Isa isa);

}  // namespace fuseloom::compile
