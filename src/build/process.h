// Child processes: start several, capture what they print, wait with a limit.
#pragma once
#include <string>
#include <vector>

namespace fuseloom::build {

struct ProcessResult {
  bool started = false;    // false: `output` says why it could not be started
  bool timed_out = false;  // killed, with everything it had started, when the limit passed
  int exit_code = -1;      // of a normal exit; 128 + signal otherwise
  std::string output;      // stdout and stderr, in the order written, at most 256 KiB
  bool ok() const { return started && !timed_out && exit_code == 0; }
};

// Runs the commands (program path, then arguments), at most `jobs` at a time (0: one per core), and gives their results
// in order. stdin is /dev/null and messages are in English (LC_ALL=C). Each child leads a process group of its own, so
// that the limit also ends the compiler proper behind a compiler driver. No shell is involved. Thread-safe.
std::vector<ProcessResult> run_processes(const std::vector<std::vector<std::string>>& commands, int jobs,
                                         double timeout_seconds);

// The command as a line to paste into a shell.
std::string shell_line(const std::vector<std::string>& command);

}  // namespace fuseloom::build
