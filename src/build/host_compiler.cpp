#include "build/host_compiler.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/check.h"
#include "build/process.h"

namespace fuseloom::build {
namespace {

std::vector<std::string> split_at_blanks(std::string_view text) {
  std::vector<std::string> words;
  size_t begin = 0;
  while ((begin = text.find_first_not_of(" \t", begin)) != std::string_view::npos) {
    const size_t end = std::min(text.find_first_of(" \t", begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

bool is_program(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && access(path.c_str(), X_OK) == 0;
}

// The absolute path of a program, searched like a shell does.
std::optional<std::string> find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (!is_program(name)) return std::nullopt;
    return std::filesystem::absolute(name).string();
  }
  const char* variable = std::getenv("PATH");
  std::string_view path = variable ? variable : "/usr/local/bin:/usr/bin:/bin";
  while (!path.empty()) {
    const size_t end = std::min(path.find(':'), path.size());
    const std::string candidate = std::string(path.substr(0, end)) + "/" + name;
    if (end > 0 && is_program(candidate)) return candidate;
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return std::nullopt;
}

std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

// A name for the program file as it is now; empty for a wrapper (ccache, distcc, a script), whose file says nothing
// about the compiler behind it.
std::string file_identity(const std::vector<std::string>& command) {
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(command[0], error);
  struct stat status;
  if (error || stat(file.c_str(), &status) != 0) return {};
  for (const std::string_view wrapper : {"ccache", "sccache", "distcc", "icecc"}) {
    if (file.filename() == wrapper) return {};
  }
  char start[2] = {};
  if (FILE* stream = std::fopen(file.c_str(), "rb")) {
    const size_t count = std::fread(start, 1, sizeof start, stream);
    std::fclose(stream);
    if (count == 2 && start[0] == '#' && start[1] == '!') return {};
  }
  return fmt::format("compiler version of {} {} {}.{:09} {}", shell_line(command), file.string(), status.st_mtim.tv_sec,
                     status.st_mtim.tv_nsec, status.st_size);
}

std::string read_version(const std::vector<std::string>& command, const DiskCache& cache) {
  const std::string identity = file_identity(command);
  if (!identity.empty()) {
    if (const std::optional<std::string> cached = cache.get_named(identity)) return *cached;
  }
  std::vector<std::string> query = command;
  query.push_back("--version");
  const ProcessResult result = run_processes({query}, 1, 20)[0];
  FL_SUPPORTED(result.ok(), "'{}' does not work: {}; set FUSELOOM_CXX to a GCC (12 or later) or Clang (14 or later)",
               shell_line(query), result.timed_out ? "no answer in 20 s" : result.output);
  const std::string version = first_line(result.output);
  if (!identity.empty()) cache.put_named(identity, version);
  return version;
}

struct FirstError {
  std::string text;  // "kernels.cpp:12:3: error: ..."
  int line = 0;
};

// GCC and Clang write "path:line:column: error: words"; the linker writes other things.
FirstError first_error(std::string_view log, const std::string& source_path) {
  FirstError first;
  size_t begin = 0;
  while (begin < log.size()) {
    const size_t end = std::min(log.find('\n', begin), log.size());
    const std::string_view line = log.substr(begin, end - begin);
    begin = end + 1;
    const bool is_error =
        line.find("error: ") != std::string_view::npos || line.find("undefined ") != std::string_view::npos;
    if (first.text.empty() && !line.empty()) first.text = line;  // for lack of a better one
    if (!is_error) continue;
    first.text = line;
    if (line.starts_with(source_path + ":"))
      first.line = std::atoi(std::string(line.substr(source_path.size() + 1)).c_str());
    break;
  }
  return first;
}

[[noreturn]] void fail(const std::vector<std::string>& command, const ProcessResult& result,
                       TemporaryDirectory& directory, const std::string& source_path, double timeout_seconds) {
  directory.keep();
  if (result.timed_out) {
    throw BuildError(fmt::format("the C++ compiler was stopped after {} s on generated source {}; command: {}",
                                 timeout_seconds, source_path, shell_line(command)),
                     source_path, 0, result.output);
  }
  const FirstError error = first_error(result.output, source_path);
  throw BuildError(
      fmt::format("the C++ compiler failed (exit code {}) on generated source {}, which is kept: {}; command: {}",
                  result.exit_code, source_path, error.text.empty() ? "it printed no message" : error.text,
                  shell_line(command)),
      source_path, error.line, result.output);
}

void append(std::vector<std::string>& list, const std::vector<std::string>& more) {
  list.insert(list.end(), more.begin(), more.end());
}

}  // namespace

Isa CompileOptions::isa_of_source(size_t index) const {
  if (source_isas.empty()) return isa;
  FL_CHECK(index < source_isas.size(), "source {} has no instruction set: {} were given", index, source_isas.size());
  return source_isas[index];
}

std::vector<std::vector<std::string>> compiler_candidates() {
  std::vector<std::vector<std::string>> candidates;
  for (const char* variable : {"FUSELOOM_CXX", "CXX"}) {
    const char* value = std::getenv(variable);
    if (!value) continue;
    if (std::vector<std::string> words = split_at_blanks(value); !words.empty()) candidates.push_back(std::move(words));
  }
  for (const char* name : {"g++", "clang++", "c++"}) candidates.push_back({name});
  return candidates;
}

HostCompiler find_host_compiler(const std::vector<std::vector<std::string>>& candidates, const DiskCache& cache) {
  std::string tried;
  for (const std::vector<std::string>& candidate : candidates) {
    FL_REQUIRE(!candidate.empty(), "an empty command was given as C++ compiler");
    const std::optional<std::string> path = find_program(candidate[0]);
    if (!path) {
      tried += (tried.empty() ? "" : ", ") + candidate[0];
      continue;
    }
    HostCompiler compiler{.command = candidate};
    compiler.command[0] = *path;
    compiler.version = read_version(compiler.command, cache);
    compiler.kind =
        compiler.version.find("clang") != std::string::npos ? HostCompiler::Kind::Clang : HostCompiler::Kind::Gcc;
    return compiler;
  }
  throw Unsupported(fmt::format(
      "no C++ compiler found for the CPU kernels: tried {}; install GCC (12 or later) or Clang (14 or later), or set "
      "FUSELOOM_CXX to one",
      tried));
}

std::vector<std::string> compile_flags(const CompileOptions& options, Isa isa) {
  std::vector<std::string> flags = {
      "-x", "c++", "-std=gnu++17", "-fPIC", "-w", "-g0",
      // What the text says is what is computed (docs/numerics.md): no FMA where none is written, integers wrap. The
      // emitter reads and writes one arena with many types.
      "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing",
      // Without these, sqrt and min are calls and branches. Neither changes a value.
      "-fno-math-errno", "-fno-trapping-math",
      // Nothing is thrown, unwound or looked up by type.
      "-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables",
      // Hardening that distributions switch on by default costs time in leaf loops and reads no input here.
      "-fno-stack-protector", "-fno-plt", "-pipe"};
#if defined(__x86_64__)
  flags.push_back("-fcf-protection=none");
#endif
  switch (options.optimization) {
    case Optimization::Quick:
      flags.push_back("-O1");
      break;
    case Optimization::Full:
      flags.push_back("-O2");
      break;
  }
  if (options.fast_math) {
    // Not -ffast-math: it would drop NaN and infinity, reorder sums and, when GCC links, set flush-to-zero in the whole
    // process.
    append(flags, {"-ffp-contract=fast", "-freciprocal-math", "-fno-signed-zeros"});
  }
  append(flags, isa_flags(isa));
  append(flags, options.extra_flags);
  return flags;
}

std::vector<std::string> link_flags(const HostCompiler& compiler) {
  std::vector<std::string> flags = {
      "-shared", "-nostartfiles",
      // No start files: no global constructors exist. Undefined symbols are found here, not
      // at load time; the files are small (one segment pair, no symbol table).
      "-Wl,-z,defs,-z,now,-z,noseparate-code,--hash-style=gnu,--build-id=none,-s,--as-needed"};
  switch (compiler.kind) {
    case HostCompiler::Kind::Gcc:
      // The linker plugin serves link-time optimisation only and costs a dlopen. libgcc has the conversions of
      // _Float16.
      append(flags, {"-nostdlib", "-fno-use-linker-plugin", "-lm", "-lc", "-lgcc"});
      break;
    case HostCompiler::Kind::Clang:
      append(flags, {"-nostdlib++", "-lm"});
      break;
  }
  return flags;
}

Bytes compile_host_library(const HostCompiler& compiler, const std::vector<std::string>& sources,
                           const CompileOptions& options) {
  FL_CHECK(!sources.empty(), "a library of no sources was asked for");
  TemporaryDirectory directory;
  const std::string library_path = directory.path() + "/kernels.so";
  std::vector<std::string> source_paths;
  for (size_t i = 0; i < sources.size(); ++i) {
    source_paths.push_back(sources.size() == 1 ? directory.path() + "/kernels.cpp"
                                               : fmt::format("{}/kernels{}.cpp", directory.path(), i));
    write_file(source_paths[i], as_bytes(sources[i]));
  }

  // One source: one process compiles and links. Several: compile side by side, then link.
  std::vector<std::string> link = compiler.command;
  if (sources.size() == 1) {
    append(link, compile_flags(options, options.isa_of_source(0)));
    append(link, {source_paths[0], "-x", "none"});
  } else {
    std::vector<std::vector<std::string>> commands;
    for (size_t i = 0; i < sources.size(); ++i) {
      const std::string object_path = fmt::format("{}/kernels{}.o", directory.path(), i);
      std::vector<std::string> command = compiler.command;
      append(command, compile_flags(options, options.isa_of_source(i)));
      append(command, {"-c", source_paths[i], "-o", object_path});
      commands.push_back(std::move(command));
      link.push_back(object_path);
    }
    const std::vector<ProcessResult> results = run_processes(commands, options.jobs, options.timeout_seconds);
    for (size_t i = 0; i < results.size(); ++i) {
      if (!results[i].ok()) fail(commands[i], results[i], directory, source_paths[i], options.timeout_seconds);
    }
  }
  append(link, link_flags(compiler));
  append(link, {"-o", library_path});
  const ProcessResult result = run_processes({link}, 1, options.timeout_seconds)[0];
  if (!result.ok()) fail(link, result, directory, source_paths[0], options.timeout_seconds);
  std::optional<Bytes> library = read_file(library_path);
  if (!library || library->empty()) {
    directory.keep();
    throw BuildError(fmt::format("the C++ compiler reported success but wrote no library; source: {}; command: {}",
                                 source_paths[0], shell_line(link)),
                     source_paths[0], 0, result.output);
  }
  return std::move(*library);
}

}  // namespace fuseloom::build
