#include "run/profiler.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "base/check.h"
#include "program/line.h"

namespace fuseloom::run {
namespace {

// Empty for lines that only look.
std::string name_of(const program::Program& program, const program::Line& line) {
  return std::visit(program::Overloaded{
                        // By its general kernel: which variant ran depends on the sizes.
                        [&](const program::Launch& launch) { return program.kernels[static_cast<size_t>(launch.variants.back().kernel)].name; },
                        [](const program::Call& call) { return "call " + call.op->name; },
                        [](const program::Copy&) { return std::string("copy"); },
                        [](const program::ReadSymbols&) { return std::string(); },
                        [](const program::Assert&) { return std::string(); },
                        [](const program::If&) { return std::string("if"); },
                        [](const program::While&) { return std::string("while"); },
                    },
                    line.what);
}

// As JSON wants it, which knows fewer escapes than our own texts.
std::string json_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void LineProfiler::add(size_t line, double start, double end, int64_t bytes, double host_seconds) {
  const std::lock_guard lock(mutex_);
  LineTimes& times = lines_[line];
  ++times.calls;
  times.seconds += end - start;
  times.bytes = bytes;
  times.host_seconds += host_seconds;
  if (events_.size() < kMostEvents)
    events_.push_back({line, start, end - start, std::hash<std::thread::id>()(std::this_thread::get_id())});
}

void LineProfiler::describe(size_t line, const PackedCudaLaunch& packed, const CudaDevice& device) {
  const CudaLaunch& launch = packed.launch;
  const double occupancy = packed.product != nullptr ? 0 : device.occupancy(launch);
  const std::lock_guard lock(mutex_);
  LineTimes& times = lines_[line];
  times.library = packed.product != nullptr;
  times.note = packed.refused;
  if (times.library) return;
  times.registers = launch.kernel->registers;
  times.local_bytes = launch.kernel->local_bytes;
  times.shared_bytes = int64_t{launch.shared_bytes} + launch.kernel->static_shared_bytes;
  times.occupancy = occupancy;
}

void LineProfiler::collect(const program::Program& program, Profile& profile) const {
  const std::lock_guard lock(mutex_);
  std::vector<int64_t> kernel_of_line(lines_.size(), -1);
  for (size_t i = 0; i < lines_.size(); ++i) {
    std::string name = name_of(program, program.lines[i]);
    if (name.empty()) continue;
    if (lines_[i].library) name = "library product, else " + name;
    kernel_of_line[i] = static_cast<int64_t>(profile.kernels.size());
    const LineTimes& times = lines_[i];
    profile.kernels.push_back({.name = std::move(name),
                               .origin = program.lines[i].origin,
                               .calls = times.calls,
                               .seconds = times.seconds,
                               .bytes = times.bytes,
                               .host_seconds = times.host_seconds,
                               .registers = times.registers,
                               .local_bytes = times.local_bytes,
                               .shared_bytes = times.shared_bytes,
                               .occupancy = times.occupancy,
                               .library = times.library,
                               .note = times.note});
  }
  for (const Event& event : events_) {
    const int64_t kernel = kernel_of_line[event.line];
    if (kernel >= 0) profile.events.push_back({static_cast<size_t>(kernel), event.start, event.seconds, event.thread});
  }
}

std::string Profile::chrome_trace() const {
  double start = events.empty() ? 0 : events.front().start;
  for (const ProfileEvent& event : events) start = std::min(start, event.start);
  std::map<uint64_t, size_t> threads;  // small numbers in the order of appearance
  std::string text = "{\"traceEvents\":[";
  for (size_t i = 0; i < events.size(); ++i) {
    const ProfileEvent& event = events[i];
    const KernelStatistics& kernel = kernels[event.kernel];
    const size_t thread = threads.emplace(event.thread, threads.size() + 1).first->second;
    text += fmt::format("{}\n{{\"name\":{},\"cat\":\"line\",\"ph\":\"X\",\"ts\":{:.3f},\"dur\":{:.3f},\"pid\":1,\"tid\":{},\"args\":{{\"origin\":{},\"bytes\":{}}}}}",
                        i == 0 ? "" : ",", json_string(kernel.name), (event.start - start) * 1e6, event.seconds * 1e6, thread, json_string(kernel.origin),
                        kernel.bytes);
  }
  return text + "\n]}\n";
}

}  // namespace fuseloom::run
