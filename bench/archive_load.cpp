// archive_load FILE.floom: milliseconds until an archive can run, and what resident memory grew by. Links with `run` alone.
// scripts/bench_aot.py starts it once for each figure.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "fuseloom/error.h"
#include "run/archive.h"

namespace {

long resident_kib() {
  long pages = 0, resident = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: {} FILE.floom\n", argv[0]);
    return 2;
  }
  try {
    const long before = resident_kib();
    const auto start = std::chrono::steady_clock::now();
    const fuseloom::run::Archive archive = fuseloom::run::Archive::open(argv[1]);
    const auto executable = archive.load({.threads = 1});
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    fmt::print("{{\"load_ms\": {:.3f}, \"grown_kib\": {}}}\n", seconds * 1e3, resident_kib() - before);
    return 0;
  } catch (const fuseloom::UserError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
