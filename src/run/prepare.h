// Packed weights: the init lines of a program, run once.
#pragma once
#include "program/program.h"
#include "run/executable.h"

namespace fuseloom::run {

// Runs the init lines of the program and of all programs nested in it, on the calling thread: Prepared buffers become
// constants with what was computed, and constants that nothing else reads are dropped. What comes out needs no preparation:
// it is what the interpreter runs and what an archive stores.
program::Program prepare_buffers(program::Program program, const KernelLookup& lookup);

}  // namespace fuseloom::run
