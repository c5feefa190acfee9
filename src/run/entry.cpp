#include "run/entry.h"

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"
#include "run/loaded_program.h"

namespace fuseloom::run {

using program::BufferId;

namespace {

// Below this, waking a thread costs more than it saves.
constexpr int64_t kParallelNanoseconds = 20000;
// Chunks per thread: threads that come late or are disturbed then cost a quarter of a share at most.
constexpr int64_t kChunksPerThread = 4;

std::string range_text(const sym::Range& range) {
  const std::string low = range.low == sym::Range::kMin ? "-inf" : fmt::format("{}", range.low);
  const std::string high = range.high == sym::Range::kMax ? "inf" : fmt::format("{}", range.high);
  return fmt::format("{} .. {}", low, high);
}

}  // namespace

void check_symbol(const std::string& symbol, int64_t value, const sym::Facts& facts, const std::string& where) {
  const auto fact = facts.symbols.find(symbol);
  if (fact == facts.symbols.end()) return;
  const sym::Range& range = fact->second;
  FL_REQUIRE(value >= range.low && value <= range.high, "{}: {} = {}, expected {}", where, symbol, value, range_text(range));
  FL_REQUIRE(range.divisor == 0 ? value == 0 : value % range.divisor == 0, "{}: {} = {}, expected a multiple of {}", where, symbol, value,
             range.divisor);
}

int64_t bytes_of(const program::Buffer& buffer, const int64_t* dims) {
  int64_t count = 1;
  for (size_t d = 0; d < buffer.type.shape.size(); ++d) {
    FL_REQUIRE(dims[d] >= 0, "%{}: {} has the negative size {} = {}; the inputs are too small", buffer.name, op::to_string(buffer.type),
               sym::to_string(buffer.type.shape[d]), dims[d]);
    if (count != 0 && __builtin_mul_overflow(count, dims[d], &count)) count = -1;
    FL_REQUIRE(count >= 0 && count < (int64_t{1} << 58), "%{}: {} has too many elements for this machine", buffer.name, op::to_string(buffer.type));
  }
  return dtype_bytes(buffer.type.dtype, count);
}

void pack_launch(PackedLaunch& packed, const LaunchPlan& plan, const int64_t* values, int32_t threads) {
  packed.sizes = values;
  values += plan.size_count;
  const int64_t work = values[0];
  packed.bytes = values[1];
  values += 2;
  size_t variant = 0;
  for (; variant + 1 < plan.functions.size() && values[0] == 0; ++variant) values += 3;
  packed.function = plan.functions[variant];
  packed.extent = values[1];
  packed.scratch_bytes = align_up(std::max<int64_t>(values[2], 0));
  const bool parallel = threads > 1 && packed.extent > 1 && work >= kParallelNanoseconds;
  const int64_t chunks = kChunksPerThread * threads;
  packed.grain = parallel ? (packed.extent + chunks - 1) / chunks : 0;
}

namespace {

// `values`: those of LaunchPlan::product.
void pack_product(PackedCudaLaunch& out, const LaunchPlan& plan, const int64_t* values, const CudaDevice& device, const RunOptions& options) {
  const std::shared_ptr<const ProductLibrary> library = device.products();
  if (library == nullptr) {
    out.refused = device.products_missing();
    return;
  }
  const program::MatrixProduct& product = *plan.product;
  const int64_t element = dtype_bytes(plan.product_dtype);
  ProductSizes sizes{.dtype = plan.product_dtype, .batch = values[0], .rows = values[1], .columns = values[2], .depth = values[3], .bias = product.bias >= 0,
                     .activation = product.activation, .tf32 = options.tf32, .workspace_bytes = values[4]};
  if (sizes.batch <= 0 || sizes.rows <= 0 || sizes.columns <= 0 || sizes.depth <= 0) {
    out.refused = "there is nothing to multiply";
    return;
  }
  out.bias = values[5] * element;
  values += 6;
  const auto operand = [&](ProductSizes::Operand& of, int64_t& bytes) {
    bytes = values[0] * element;
    of = {.batch_stride = values[1], .row_stride = values[2], .column_stride = values[3]};
    const int64_t together = bytes | (sizes.batch > 1 ? of.batch_stride * element : 0) | kDeviceAlignment;
    of.alignment = static_cast<int32_t>(together & -together);
    values += 4;
  };
  operand(sizes.left, out.left);
  operand(sizes.right, out.right);
  operand(sizes.result, out.result);
  device.make_current();
  out.product = library->plan(sizes, out.refused);
  if (out.product == nullptr) out.refused = library->description() + ": " + out.refused;
}

}  // namespace

PackedCudaLaunch pack_cuda_launch(PackedLaunch& packed, const LaunchPlan& plan, const int64_t* values, const CudaDevice& device, const RunOptions& options) {
  packed.sizes = values;
  values += plan.size_count;
  packed.bytes = values[1];
  values += 2;
  size_t variant = 0;
  for (; variant + 1 < plan.cuda.size() && values[0] == 0; ++variant) values += 5;
  const CudaVariantPlan& chosen = plan.cuda[variant];
  PackedCudaLaunch out;
  for (size_t d = 0; d < 3; ++d) {
    const int64_t blocks = std::max<int64_t>(values[1 + d], 0);
    FL_SUPPORTED(blocks <= device.properties().max_grid[d], "kernel {}: a grid of {} blocks in dimension {}, the device takes at most {}", chosen.kernel->name,
                 blocks, d, device.properties().max_grid[d]);
    out.launch.grid[d] = static_cast<uint32_t>(blocks);
    out.empty = out.empty || blocks == 0;
    out.launch.block[d] = static_cast<uint32_t>(chosen.block[d]);
  }
  FL_SUPPORTED(values[4] <= device.properties().shared_bytes_per_block, "kernel {}: {} bytes of dynamic shared memory, the device has {} for a block",
               chosen.kernel->name, values[4], device.properties().shared_bytes_per_block);
  out.launch.kernel = chosen.kernel;
  out.launch.shared_bytes = static_cast<uint32_t>(std::max<int64_t>(values[4], 0));
  const std::array<uint32_t, 3> cluster = {static_cast<uint32_t>(chosen.cluster[0]), static_cast<uint32_t>(chosen.cluster[1]), static_cast<uint32_t>(chosen.cluster[2])};
  if (cluster != std::array<uint32_t, 3>{1, 1, 1}) out.launch.add_cluster(cluster);
  if (chosen.cooperative) out.launch.add_cooperative();
  if (plan.product != nullptr && options.products && !out.empty) pack_product(out, plan, values + 5 * (plan.cuda.size() - variant), device, options);
  if (!out.empty && out.product == nullptr) device.check(out.launch);
  return out;
}

// ---- making an entry -------------------------------------------------------------------------------------------------

class EntryMaker {
 public:
  EntryMaker(const LoadedProgram& loaded, std::vector<int64_t> key) : loaded_(loaded), program_(loaded.program_) { entry_->key = std::move(key); }

  std::shared_ptr<const Entry> make() {
    bind_symbols();
    evaluate();
    check_inputs();
    place_arena();
    resolve_arguments();
    pack_launches();
    for (const auto& [call, line] : loaded_.call_lines_) add_call(call, line);
    for (size_t i = 0; i < loaded_.outputs_.size(); ++i) {
      const OutputPlan& output = loaded_.outputs_[i];
      const int64_t* dims = values(output.dims);
      entry_->result_dims.push_back(output.dims.stage == 0 ? Dims(dims, dims + program_.outputs[i].type.rank()) : Dims());
    }
    return std::move(entry_);
  }

 private:
  const int64_t* values(ValueRef ref) const { return entry_->values.data() + ref.base; }

  void bind_symbols() {
    std::vector<int64_t> known;
    for (const LoadedProgram::Binding& binding : loaded_.bindings_) {
      if (!binding.solve) {
        entry_->symbols.push_back(entry_->key[static_cast<size_t>(binding.key)]);
        continue;
      }
      known = entry_->symbols;
      known.push_back(entry_->key[static_cast<size_t>(binding.solve_key)]);
      std::vector<int64_t> scratch(binding.solve->scratch_size());
      int64_t solution = 0;
      binding.solve->evaluate(known, scratch, {&solution, 1});
      entry_->symbols.push_back(solution);
    }
  }

  void evaluate() {
    const sym::Evaluator& evaluator = loaded_.evaluators_[0];
    std::vector<int64_t> scratch(evaluator.scratch_size());
    entry_->values.resize(evaluator.result_count());
    evaluator.evaluate(entry_->symbols, scratch, entry_->values);
  }

  // "n = 4, m = 5" for the symbols of an expression.
  std::string symbol_values(const sym::Expr& expr) const {
    std::string text;
    for (const std::string& name : sym::symbols_of(expr)) {
      const auto at = std::find(loaded_.symbols_.begin(), loaded_.symbols_.end(), name) - loaded_.symbols_.begin();
      text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", name, entry_->symbols[static_cast<size_t>(at)]);
    }
    return text;
  }

  // Every size of the inputs must be what its expression says: bare symbols were bound to their first occurrence, and
  // solving is only as good as this check (B2, B3).
  void check_inputs() {
    const int64_t* expected = values(loaded_.input_dims_);
    for (size_t i = 0; i < program_.input_types.size(); ++i) {
      const op::TensorType& type = program_.input_types[i];
      const int64_t* const dims = entry_->key.data() + loaded_.input_key_[i];
      const Dims strides = contiguous_strides({dims, type.shape.size()});
      entry_->strides.insert(entry_->strides.end(), strides.begin(), strides.end());
      for (size_t d = 0; d < type.shape.size(); ++d, ++expected) {
        const sym::Expr& size = type.shape[d];
        if (*expected != dims[d]) {
          const std::string known = symbol_values(size);
          throw UserError(fmt::format("input '{}', dimension {} ({}): expected {}, got {}; {} was asked for{}{}", program_.input_names[i], d,
                                      sym::to_string(size), *expected, dims[d], op::to_string(type), known.empty() ? "" : " with ", known));
        }
        for (const std::string& name : sym::symbols_of(size)) {
          const auto at = std::find(loaded_.symbols_.begin(), loaded_.symbols_.end(), name) - loaded_.symbols_.begin();
          check_symbol(name, entry_->symbols[static_cast<size_t>(at)], program_.facts,
                       fmt::format("input '{}', dimension {}", program_.input_names[i], d));
        }
      }
    }
  }

  // First fit in the planned order: every storage gets the lowest place in which it meets none of those placed before it
  // that live when it lives. Whoever is in the way at some offset is in the way up to its top, so that climbing from top
  // to top, in any order of the others, ends at the lowest place; mostly the second round finds nobody any more.
  void place_arena() {
    const std::vector<Storage>& storages = loaded_.storages_;
    entry_->storage_bytes.assign(storages.size(), 0);
    entry_->arena_offsets.assign(storages.size(), 0);
    for (size_t s = 0; s < storages.size(); ++s) {
      const BufferPlan& plan = loaded_.plan_of(storages[s].buffer);
      if (plan.dims.stage == 0) entry_->storage_bytes[s] = bytes_of(program_.buffer(storages[s].buffer), values(plan.dims));
    }
    std::vector<int64_t> tops(storages.size(), 0), change(program_.lines.size() + 2, 0);
    for (const Placement& placement : loaded_.placements_) {
      const size_t s = static_cast<size_t>(placement.storage);
      const int64_t bytes = align_up(entry_->storage_bytes[s]);
      if (bytes == 0) continue;
      int64_t offset = 0;
      for (bool climbed = true; climbed;) {
        climbed = false;
        for (const int32_t other : placement.conflicts) {
          const int64_t top = tops[static_cast<size_t>(other)];
          if (offset >= top || entry_->arena_offsets[static_cast<size_t>(other)] >= offset + bytes) continue;
          offset = top;
          climbed = true;
        }
      }
      entry_->arena_offsets[s] = offset;
      tops[s] = offset + bytes;
      entry_->arena_bytes = std::max(entry_->arena_bytes, tops[s]);
      change[static_cast<size_t>(storages[s].first)] += bytes;
      change[static_cast<size_t>(storages[s].last) + 1] -= bytes;
    }
    int64_t live = 0;
    for (const int64_t each : change) {
      live += each;
      entry_->arena_lower_bound = std::max(entry_->arena_lower_bound, live);
    }
  }

  void resolve_arguments() {
    entry_->arguments.reserve(static_cast<size_t>(loaded_.argument_count_));
    for (const LaunchPlan& launch : loaded_.launches_) {
      for (const BufferId id : launch.buffers) {
        const BufferPlan& plan = loaded_.plan_of(id);
        if (plan.view_slot >= 0) {
          entry_->arguments.push_back({plan.view_slot, 0});
          continue;
        }
        const size_t storage = static_cast<size_t>(plan.storage);
        const int64_t start = entry_->arena_offsets[storage];
        entry_->arguments.push_back({loaded_.storages_[storage].slot, start + *values(plan.offset)});
      }
    }
  }

  void pack_launches() {
    for (const LaunchPlan& launch : loaded_.launches_) {
      PackedLaunch packed{.arguments = entry_->arguments.data() + launch.first_argument,
                          .argument_count = launch.kernel_arguments};
      if (loaded_.device_ != nullptr) {
        PackedCudaLaunch cuda;
        if (launch.values.stage == 0) cuda = pack_cuda_launch(packed, launch, values(launch.values), *loaded_.device_, loaded_.options_);
        entry_->cuda_launches.push_back(cuda);
      } else if (launch.values.stage == 0) {
        pack_launch(packed, launch, values(launch.values), loaded_.threads_);
        entry_->scratch_bytes = std::max(entry_->scratch_bytes, packed.scratch_bytes * (packed.grain > 0 ? loaded_.threads_ : 1));
      }
      entry_->launches.push_back(packed);
    }
  }

  void add_call(int32_t call, int32_t line) {
    entry_->call_attrs.resize(loaded_.calls_.size());
    if (loaded_.calls_[static_cast<size_t>(call)].stage > 0) return;
    std::map<std::string, int64_t> symbols;
    for (size_t i = 0; i < entry_->symbols.size(); ++i) symbols[loaded_.symbols_[i]] = entry_->symbols[i];
    const auto& what = std::get<program::Call>(program_.lines[static_cast<size_t>(line)].what);
    entry_->call_attrs[static_cast<size_t>(call)] = op::concrete(what.attrs, symbols);
  }

  const LoadedProgram& loaded_;
  const program::Program& program_;
  std::shared_ptr<Entry> entry_ = std::make_shared<Entry>();
};

std::shared_ptr<const Entry> make_entry(const LoadedProgram& loaded, std::vector<int64_t> key) { return EntryMaker(loaded, std::move(key)).make(); }

// ---- the cache -------------------------------------------------------------------------------------------------------

size_t EntryCache::KeyHash::operator()(const std::vector<int64_t>& key) const {
  uint64_t hash = key.size();
  for (const int64_t value : key) hash = base::hash_combine(hash, static_cast<uint64_t>(value));
  return hash;
}

std::shared_ptr<const Entry> EntryCache::find(const std::vector<int64_t>& key) {
  if (capacity_ == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return nullptr;
  order_.splice(order_.begin(), order_, found->second);
  return *found->second;
}

std::shared_ptr<const Entry> EntryCache::add(std::shared_ptr<const Entry> entry) {
  if (capacity_ == 0) return entry;
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(entry->key);
  if (found != entries_.end()) return *found->second;
  order_.push_front(entry);
  entries_.emplace(entry->key, order_.begin());
  if (order_.size() > capacity_) {
    entries_.erase(order_.back()->key);
    order_.pop_back();
  }
  return entry;
}

size_t EntryCache::size() const {
  const std::lock_guard lock(mutex_);
  return order_.size();
}

}  // namespace fuseloom::run
