// Chooses among the configurations of user-written kernels by measuring them.
#pragma once
#include "build/disk_cache.h"
#include "compile/pipeline.h"
#include "schedule/source_kernel.h"

namespace fuseloom::compile {

// For every node, subgraphs included, whose kernel has several configurations for the typical sizes: the fastest one, from the
// cache or measured on one thread with made-up inputs, and then kept in the cache. Without typical sizes, or for an instruction
// set that this machine lacks, nothing is measured and the first one is taken.
schedule::TunedConfigurations tune_source_kernels(const graph::Graph& graph, build::Isa isa, const schedule::SizeHint& hint, const build::DiskCache& cache);

// How sources are compiled of which the last holds these kernels.
build::CompileOptions library_options(build::Isa isa, std::span<const op::SourceKernelInstance> kernels);
// What the compiler says about text that a user wrote is the user's to mend: throws UserError with its words. Returns when the
// error has nothing to do with these kernels.
void blame_source_kernel(const build::BuildError& error, std::span<const op::SourceKernelInstance> kernels);
// Both around build_host_library_bytes.
build::HostLibrary build_library(const std::vector<std::string>& sources, std::span<const op::SourceKernelInstance> kernels, build::Isa isa,
                                 const build::DiskCache& cache);

}  // namespace fuseloom::compile
