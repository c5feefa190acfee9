#include "run/archive.h"

#include <cstring>

#include "base/check.h"
#include "build/file.h"
#include "build/isa.h"
#include "build/shared_object.h"
#include "run/memory.h"

namespace fuseloom::run {

namespace {

using program::ArchiveReader;
using program::ModuleFormat;

// A module of the archive.
struct Choice {
  size_t target = 0, module = 0;
};

// What the archive has, for messages: "x86-64 avx2, x86-64 avx512".
std::string list_modules(const ArchiveReader& reader) {
  std::string list;
  for (const ArchiveReader::TargetInfo& target : reader.targets()) {
    for (const ArchiveReader::ModuleInfo& module : target.modules)
      list += fmt::format("{}{}{}{}", list.empty() ? "" : ", ", module.architecture, module.isa.empty() ? "" : " ", module.isa);
  }
  return list.empty() ? "nothing" : list;
}

// The highest level that this machine has, or the one that was asked for.
Choice choose(const ArchiveReader& reader, const std::string& isa) {
  const std::optional<build::Isa> wanted = isa.empty() ? std::nullopt : build::parse_isa(isa);
  FL_REQUIRE(isa.empty() || wanted, "isa '{}' is not known; expected baseline, avx2 or avx512", isa);
  std::optional<Choice> best;
  build::Isa best_isa = build::Isa::Baseline;
  for (size_t t = 0; t < reader.targets().size(); ++t) {
    const ArchiveReader::TargetInfo& target = reader.targets()[t];
    for (size_t m = 0; m < target.modules.size(); ++m) {
      const ArchiveReader::ModuleInfo& module = target.modules[m];
      const std::optional<build::Isa> level = build::parse_isa(module.isa);
      if (module.format != ModuleFormat::SharedObject || module.architecture != build::architecture_name()) continue;
      if (!level || !build::runs_here(*level) || (wanted && *wanted != *level) || (best && *level <= best_isa)) continue;
      best = Choice{t, m};
      best_isa = *level;
    }
  }
  FL_REQUIRE(best, "{}: has no code for this machine ({} {}{}); it has code for: {}; compile the model for this machine, or with --isa portable",
             reader.where(), build::architecture_name(), build::isa_name(build::detect_isa()),
             isa.empty() ? "" : fmt::format(", asked for '{}'", isa), list_modules(reader));
  return *best;
}

}  // namespace

Archive Archive::open(const std::string& path) {
  build::MappedFile file = build::map_file(path);
  return Archive(std::make_shared<const ArchiveReader>(file.bytes, std::move(file.owner), path));
}

Archive Archive::from_bytes(std::span<const std::byte> bytes, std::shared_ptr<void> owner, const std::string& where) {
  if (reinterpret_cast<uintptr_t>(bytes.data()) % program::kArchiveAlignment != 0) {
    owner = allocate_shared(static_cast<int64_t>(bytes.size()));
    std::memcpy(owner.get(), bytes.data(), bytes.size());
    bytes = {static_cast<const std::byte*>(owner.get()), bytes.size()};
  }
  return Archive(std::make_shared<const ArchiveReader>(bytes, std::move(owner), where));
}

std::string Archive::chosen_isa(const ArchiveOptions& options) const {
  const Choice choice = choose(*reader_, options.isa);
  return reader_->targets()[choice.target].modules[choice.module].isa;
}

ArchiveReader::LoadedTarget Archive::target(const ArchiveOptions& options, const op::OpTable& table) const {
  return reader_->target(choose(*reader_, options.isa).target, table, options.check_tensors);
}

std::shared_ptr<Executable> Archive::load(const ArchiveOptions& options, const op::OpTable& table) const {
  const ArchiveReader& reader = *reader_;
  const Choice choice = choose(reader, options.isa);
  ArchiveReader::LoadedTarget target = reader.target(choice.target, table, options.check_tensors);
  const std::span<const std::byte> code = reader.module(choice.target, choice.module);

  std::shared_ptr<build::SharedObject> library;
  if (!code.empty()) {
    try {
      library = std::make_shared<build::SharedObject>(build::SharedObject::load(code, reader.where()));
    } catch (const InternalError& error) {
      throw UserError(fmt::format("{}: its machine code cannot be loaded here: {}", reader.where(), error.what()));
    }
  }
  const KernelLookup lookup = [&](const std::string& name) {
    void* const function = library != nullptr ? library->find(name) : nullptr;
    FL_REQUIRE(function != nullptr, "{}: its machine code has no kernel '{}'", reader.where(), name);
    return reinterpret_cast<KernelFunction>(function);
  };
  RunOptions run = options.run;
  if (options.threads > 0) run.threads = options.threads;
  const std::shared_ptr<ThreadPool> pool = options.pool != nullptr ? options.pool : std::make_shared<ThreadPool>(options.threads);
  auto executable = std::make_shared<Executable>(std::move(target.program), lookup, library, pool, run);
  for (const std::vector<Dims>& entry : target.entries) executable->prepare_entry(entry);
  return executable;
}

}  // namespace fuseloom::run
