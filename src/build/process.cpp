#include "build/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string_view>
#include <thread>

extern char** environ;

namespace fuseloom::build {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMaxOutput = size_t{256} << 10;

struct Child {
  size_t command = 0;
  pid_t pid = -1;
  int pipe = -1;  // read end of its stdout and stderr
  Clock::time_point deadline;
};

// Starts the command with stdout and stderr in a pipe. On failure fills `result.output` and returns a child without
// pid.
Child start(const std::vector<std::string>& command, ProcessResult& result) {
  Child child;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    result.output = fmt::format("cannot make a pipe: {}", std::strerror(errno));
    return child;
  }
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  std::vector<char*> environment;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    if (!text.starts_with("LC_ALL=") && !text.starts_with("LANGUAGE=")) environment.push_back(*entry);
  }
  char locale[] = "LC_ALL=C";
  environment.push_back(locale);
  environment.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // The host program may have blocked or ignored signals; a compiler expects the defaults.
  sigset_t none, defaults;
  sigemptyset(&none);
  sigemptyset(&defaults);
  for (const int signal : {SIGPIPE, SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&defaults, signal);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  const int error =
      posix_spawn(&child.pid, command[0].c_str(), &actions, &attributes, arguments.data(), environment.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    child.pid = -1;
    result.output = fmt::format("cannot start {}: {}", command[0], std::strerror(error));
    return child;
  }
  result.started = true;
  child.pipe = ends[0];
  return child;
}

// Collects the exit status once the pipe is closed.
void finish(const Child& child, ProcessResult& result) {
  close(child.pipe);
  int status = 0;
  pid_t waited;
  do {
    waited = waitpid(child.pid, &status, 0);
  } while (waited < 0 && errno == EINTR);
  // ECHILD: the host program ignores SIGCHLD and the kernel has dropped the status. The caller looks for the output
  // file, as it does in any case.
  if (waited < 0) {
    result.exit_code = 0;
  } else if (WIFEXITED(status)) {
    result.exit_code = WEXITSTATUS(status);
  } else {
    result.exit_code = 128 + WTERMSIG(status);
  }
}

}  // namespace

std::vector<ProcessResult> run_processes(const std::vector<std::vector<std::string>>& commands, int jobs,
                                         double timeout_seconds) {
  std::vector<ProcessResult> results(commands.size());
  const size_t limit = static_cast<size_t>(jobs > 0 ? jobs : std::max(1u, std::thread::hardware_concurrency()));
  const auto timeout = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_seconds));
  std::vector<Child> running;
  size_t next = 0;
  while (next < commands.size() || !running.empty()) {
    // 1. Keep `limit` children running.
    while (next < commands.size() && running.size() < limit) {
      Child child = start(commands[next], results[next]);
      child.command = next++;
      child.deadline = Clock::now() + timeout;
      if (child.pid > 0) running.push_back(child);
    }
    if (running.empty()) continue;

    // 2. Wait for output, for the end of one, or for the first deadline.
    std::vector<pollfd> polls;
    Clock::time_point deadline = running[0].deadline;
    for (const Child& child : running) {
      polls.push_back({.fd = child.pipe, .events = POLLIN, .revents = 0});
      deadline = std::min(deadline, child.deadline);
    }
    const double left = std::chrono::duration<double>(deadline - Clock::now()).count();
    poll(polls.data(), polls.size(), static_cast<int>(std::ceil(std::clamp(left, 0.0, 3600.0) * 1000)));

    // 3. Read, and drop the ones that have ended or are late.
    const Clock::time_point now = Clock::now();
    std::vector<Child> still_running;
    for (size_t i = 0; i < running.size(); ++i) {
      const Child& child = running[i];
      ProcessResult& result = results[child.command];
      bool ended = false;
      if (polls[i].revents != 0) {
        char buffer[16384];
        const ssize_t count = read(child.pipe, buffer, sizeof buffer);
        if (count > 0) {
          const size_t room = kMaxOutput - result.output.size();
          result.output.append(buffer, std::min(static_cast<size_t>(count), room));
        } else if (count == 0 || errno != EINTR) {
          ended = true;
        }
      }
      if (!ended && now >= child.deadline) {
        kill(-child.pid, SIGKILL);
        result.timed_out = true;
        ended = true;
      }
      if (ended) {
        finish(child, result);
      } else {
        still_running.push_back(child);
      }
    }
    running = std::move(still_running);
  }
  return results;
}

std::string shell_line(const std::vector<std::string>& command) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";
  std::string line;
  for (const std::string& argument : command) {
    if (!line.empty()) line += ' ';
    if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos) {
      line += argument;
      continue;
    }
    line += '\'';
    for (const char c : argument) {
      if (c == '\'') {
        line += "'\\''";
      } else {
        line += c;
      }
    }
    line += '\'';
  }
  return line;
}

}  // namespace fuseloom::build
