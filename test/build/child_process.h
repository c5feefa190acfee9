// A test in another process: a forked child that runs a function.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace fuseloom::build {

// Runs `body` in a forked child and gives its pid. The child's exit code is what `body` returns; nothing of the test's
// process (output buffers, exit handlers) is run twice.
inline pid_t start_child(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    int code = 99;
    try {
      code = body();
    } catch (...) {
    }
    _exit(code);
  }
  return pid;
}

// Exit code, or 128 + signal.
inline int wait_for(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

inline int run_child(const std::function<int()>& body) { return wait_for(start_child(body)); }

}  // namespace fuseloom::build
