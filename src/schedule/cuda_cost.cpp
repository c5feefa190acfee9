#include "schedule/cuda_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace fuseloom::schedule {

namespace {

constexpr int32_t kWarp = 32;
constexpr int32_t kBaseRegisters = 20;             // addresses, indices, predicates
constexpr int32_t kMaxRegisters = 168;             // beyond, the compiler begins to spill
constexpr double kBarrierNanoseconds = 60;         // a block's reduction: shuffles, shared memory, barrier
constexpr double kAccuracy = 1.12;         // what estimates may differ by and still be equal
constexpr double kBlockNanoseconds = 300;          // to start a block and to retire it

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Estimates within kAccuracy of the best are equal to the model; among those `prefer` decides.
template <class Choice, class Prefer>
void sort_best_first(std::vector<Ranked<Choice>>& ranked, Prefer&& prefer) {
  const auto fits = [](const Ranked<Choice>& each) { return each.estimate.resident > 0; };
  // On a device where nothing fits by the estimate, the compiler is left to find out.
  if (std::any_of(ranked.begin(), ranked.end(), fits)) std::erase_if(ranked, [&](const Ranked<Choice>& each) { return !fits(each); });
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.estimate.nanoseconds < b.estimate.nanoseconds; });
  const double equal = ranked[0].estimate.nanoseconds * kAccuracy;
  const auto last = std::find_if(ranked.begin(), ranked.end(), [&](const auto& each) { return each.estimate.nanoseconds > equal; });
  std::stable_sort(ranked.begin(), last, [&](const auto& a, const auto& b) { return prefer(a.choice) < prefer(b.choice); });
}

}  // namespace

std::string Estimate::text() const { return fmt::format("{:.0f} ns, {} blocks a multiprocessor, {:.0f} bytes in flight, {:.2f} waves", nanoseconds, resident, in_flight, waves); }

Estimate estimate(const BlockWork& work, const CudaTarget& target) {
  Estimate out;
  // 1. How many blocks a multiprocessor holds. Registers are handed out in units of 8 a thread.
  const int32_t registers = static_cast<int32_t>(ceil_div(work.registers, 8) * 8);
  int64_t resident = std::min<int64_t>(target.blocks_per_multiprocessor, target.threads_per_multiprocessor / work.threads);
  resident = std::min<int64_t>(resident, target.registers_per_multiprocessor / (int64_t{registers} * work.threads));
  if (work.shared_bytes > target.shared_per_block) return out;
  if (work.shared_bytes > 0) resident = std::min<int64_t>(resident, target.shared_per_multiprocessor / (work.shared_bytes + 1024));
  if (resident <= 0) return out;
  out.resident = static_cast<int32_t>(resident);
  const double active = std::min(static_cast<double>(resident), std::max(1.0, work.blocks / target.multiprocessors));
  // 2. Memory: Little's law. A multiprocessor's share of the bandwidth needs share x latency bytes in flight.
  const double share = target.bytes_per_nanosecond / target.multiprocessors;
  const double needed = share * target.latency_nanoseconds;
  out.in_flight = active * work.threads * work.bytes_in_flight;
  const double fraction = std::min(1.0, out.in_flight / needed);
  // 3. The part of the device that has work: blocks come in waves, but those of a long launch drift apart.
  out.waves = work.blocks / (static_cast<double>(resident) * target.multiprocessors);
  const double whole = std::max(1.0, std::ceil(out.waves - 1e-9));
  const double tail = out.waves > 8 ? 1.0 : 0.5 + 0.5 * whole / std::max(out.waves, 1e-3);
  const double per_multiprocessor = work.blocks / target.multiprocessors;
  const double memory = per_multiprocessor * work.bytes / (share * std::max(fraction, 0.02)) * std::min(tail, 4.0);
  const double issue = per_multiprocessor * work.instructions / kWarp / 4 / target.clock_gigahertz * std::min(tail, 4.0);
  const double chain = whole * (work.latency + kBlockNanoseconds);
  // 4. What overlaps is bounded by its longest part; a fifth of the rest shows.
  const double longest = std::max({memory, issue, chain});
  out.nanoseconds = longest + 0.2 * (memory + issue + chain - longest);
  return out;
}

// ---- pointwise -------------------------------------------------------------------------------------------------------

std::string PointwiseChoice::text() const {
  return flat ? fmt::format("{} threads, {} vectors of {}", threads_x, unroll, vector)
              : fmt::format("{} x {} threads, {} rows of vectors of {}", threads_x, threads_y, unroll, vector);
}

std::vector<Ranked<PointwiseChoice>> rank(const PointwiseWork& work, const CudaTarget& target) {
  std::vector<Ranked<PointwiseChoice>> ranked;
  const int64_t vectors = ceil_div(std::max<int64_t>(1, work.columns), work.vector);
  const int32_t widest = work.vector == 1 ? 16 : 8;
  for (const int32_t threads : {256, 128, 512}) {
    for (int32_t x = threads; x >= (work.flat ? threads : 4); x /= 2) {
      for (int32_t unroll = 1; unroll <= widest; unroll *= 2) {
        const PointwiseChoice choice{.flat = work.flat, .vector = work.vector, .unroll = unroll, .threads_x = x, .threads_y = threads / x};
        const double tiles = work.flat ? static_cast<double>(ceil_div(vectors, int64_t{x} * unroll))
                                       : static_cast<double>(ceil_div(vectors, x)) * static_cast<double>(ceil_div(work.rows, int64_t{choice.threads_y} * unroll));
        const double full = static_cast<double>(threads) * unroll * work.vector;            // elements of a block's tile
        const double used = static_cast<double>(vectors) * static_cast<double>(work.vector) * static_cast<double>(work.rows) / tiles / full;
        BlockWork block{.blocks = tiles, .threads = threads};
        block.registers = kBaseRegisters + 2 * unroll + static_cast<int32_t>(ceil_div(int64_t{work.staged_bytes} * work.vector, 4)) * unroll + 3 * work.vector;
        if (block.registers > kMaxRegisters) continue;
        // A warp whose rows are short touches several of them; below a sector of 32 bytes each, bytes are wasted.
        block.bytes = full * used * work.moved_bytes;
        block.bytes_in_flight = static_cast<double>(work.staged_bytes) * work.vector * unroll * used;
        block.instructions = full * (work.instructions + 6.0 / work.vector) + threads * (work.flat ? 10.0 : 20.0 * unroll);
        block.latency = target.latency_nanoseconds;
        ranked.push_back({choice, estimate(block, target)});
      }
      if (work.flat) break;
    }
  }
  // Small blocks of few vectors leave the compiler and the scheduler the most room.
  sort_best_first(ranked, [](const PointwiseChoice& choice) { return std::tuple(choice.unroll, std::abs(choice.threads_x * choice.threads_y - 256), -choice.threads_x); });
  return ranked;
}

// ---- rows ------------------------------------------------------------------------------------------------------------

std::string RowChoice::text() const {
  const char* where = keep == Keep::Registers ? "registers" : keep == Keep::Shared ? "shared memory" : "reloaded";
  return fmt::format("row in {}, {} threads x {} vectors of {}, {} rows a block{}", where, threads, unroll, vector, rows, peeled ? ", ends peeled" : "");
}

std::vector<Ranked<RowChoice>> rank(const RowWork& work, const CudaTarget& target) {
  std::vector<Ranked<RowChoice>> ranked;
  const int64_t vectors = ceil_div(std::max<int64_t>(1, work.length), work.vector);
  const double row_bytes = static_cast<double>(work.length) * (work.staged_bytes + work.stored_bytes);
  const auto consider = [&](const RowChoice& choice, BlockWork block, double passes_from_l2) {
    block.blocks = static_cast<double>(ceil_div(work.rows, choice.rows));
    block.threads = choice.threads * choice.rows;
    if (block.threads > 1024 || block.registers > kMaxRegisters) return;
    block.bytes = choice.rows * row_bytes;
    block.instructions += choice.rows * (static_cast<double>(work.length) * (work.instructions + 6.0 * work.loops / work.vector) + choice.threads * 30.0 * work.loops);
    block.latency += target.latency_nanoseconds + work.loops * (choice.threads <= kWarp ? 30.0 : kBarrierNanoseconds + 2.0 * choice.threads / kWarp);
    Estimate of = estimate(block, target);
    if (passes_from_l2 > 0) {
      // Rows in work beyond L2 come from device memory again.
      const double in_work = of.resident * target.multiprocessors * static_cast<double>(work.length) * work.staged_bytes;
      const double cost = in_work < 0.7 * static_cast<double>(target.l2_bytes) ? 0.45 : 1.0;
      of.nanoseconds *= 1 + passes_from_l2 * cost * work.staged_bytes / std::max(1, work.staged_bytes + work.stored_bytes);
    }
    ranked.push_back({choice, of});
  };
  for (const int32_t threads : {32, 64, 128, 256, 512, 1024}) {
    const int32_t side_by_side = std::max(1, 128 / threads);
    const int32_t unroll = static_cast<int32_t>(std::min<int64_t>(1 << 20, ceil_div(vectors, threads)));
    if (work.bounded && int64_t{unroll} * work.vector <= work.most_held && (unroll == 1 || int64_t{threads} * (unroll - 1) < vectors)) {
      const int32_t held = unroll * work.vector;
      BlockWork block{.registers = kBaseRegisters + unroll + static_cast<int32_t>(ceil_div(int64_t{work.staged_bytes + work.kept_bytes} * held, 4)) + 2 * work.vector};
      block.bytes_in_flight = static_cast<double>(work.length) * work.staged_bytes / threads;
      consider({.keep = Keep::Registers, .vector = work.vector, .unroll = unroll, .threads = threads, .rows = side_by_side}, block, 0);
    }
    if (work.bounded && work.loops > 1 && threads >= 128) {
      const int32_t in_flight = static_cast<int32_t>(std::min<int64_t>(ceil_div(vectors, threads), work.vector == 1 ? 8 : 4));
      BlockWork block{.registers = kBaseRegisters + in_flight + static_cast<int32_t>(ceil_div(int64_t{work.staged_bytes} * in_flight * work.vector, 4)) + 3 * work.vector};
      block.shared_bytes = ceil_div(vectors, int64_t{threads} * in_flight) * threads * in_flight * work.vector * work.staged_bytes;
      block.bytes_in_flight = static_cast<double>(work.staged_bytes) * in_flight * work.vector;
      block.latency = 20.0 * static_cast<double>(ceil_div(vectors, int64_t{threads} * in_flight)) * work.loops;
      block.instructions = static_cast<double>(work.length) * work.loops * 4.0 / work.vector;
      consider({.keep = Keep::Shared, .vector = work.vector, .unroll = in_flight, .threads = threads, .rows = 1}, block, 0);
    }
    for (const int32_t in_flight : {1, 2, 4, 8}) {
      if (in_flight * work.vector > 64 || (in_flight > 1 && int64_t{threads} * (in_flight - 1) >= vectors)) continue;
      BlockWork block{.registers = kBaseRegisters + in_flight + static_cast<int32_t>(ceil_div(int64_t{work.staged_bytes} * in_flight * work.vector, 4)) + 3 * work.vector};
      block.bytes_in_flight = static_cast<double>(std::min<int64_t>(work.length, int64_t{threads} * in_flight * work.vector)) / threads * work.staged_bytes;
      block.latency = 300.0 * static_cast<double>(ceil_div(vectors, int64_t{threads} * in_flight)) * work.passes;
      consider({.keep = Keep::Reload, .vector = work.vector, .unroll = in_flight, .threads = threads, .rows = side_by_side}, block, work.passes - 1);
    }
  }
  // A row that is in registers needs no address; two vectors a thread leave most to the other blocks' overlap.
  sort_best_first(ranked, [](const RowChoice& choice) { return std::pair(choice.keep, std::abs(choice.unroll * choice.vector - 16)); });
  return ranked;
}

// ---- columns ---------------------------------------------------------------------------------------------------------

std::string ColumnChoice::text() const { return fmt::format("{} x {} threads, {} rows of vectors of {} in flight", threads_x, threads_y, unroll, vector); }

std::vector<Ranked<ColumnChoice>> rank(const ColumnWork& work, const CudaTarget& target) {
  std::vector<Ranked<ColumnChoice>> ranked;
  const int64_t vectors = ceil_div(std::max<int64_t>(1, work.columns), work.vector);
  for (const int32_t threads : {256, 512}) {
    for (int32_t x = 32; x >= 4; x /= 2) {
      for (int32_t unroll = 1; unroll <= 8; unroll *= 2) {
        if (x > 4 && int64_t{x} / 2 >= vectors) continue;          // half of the threads would have no column
        const ColumnChoice choice{.vector = work.vector, .unroll = unroll, .threads_x = x, .threads_y = threads / x};
        const double columns = static_cast<double>(ceil_div(vectors, x));
        // Blocks along the folded rows: enough of them for two waves, none shorter than one step.
        const double steps = std::max(1.0, static_cast<double>(work.length) / (choice.threads_y * unroll));
        const double splits = std::clamp(2.0 * target.multiprocessors * 8 * 256 / threads / columns, 1.0, steps);
        BlockWork block{.blocks = columns * splits, .threads = threads};
        block.registers = kBaseRegisters + 2 * unroll + static_cast<int32_t>(ceil_div(int64_t{work.staged_bytes} * work.vector, 4)) * unroll + (work.accumulators + 2) * work.vector;
        if (block.registers > kMaxRegisters) continue;
        block.shared_bytes = int64_t{4} * threads * work.vector * work.accumulators;
        const double elements = static_cast<double>(work.columns) * static_cast<double>(work.length) / block.blocks;
        // A row's part below 128 bytes wastes what the memory fetches beside it.
        const double waste = std::max(1.0, 64.0 / (static_cast<double>(x) * work.vector * std::max(1, work.staged_bytes)));
        block.bytes = elements * work.staged_bytes * waste;
        block.bytes_in_flight = static_cast<double>(work.staged_bytes) * work.vector * unroll;
        block.instructions = elements * (work.instructions + 6.0 / work.vector);
        block.latency = target.latency_nanoseconds + 100.0 * steps / splits;
        ranked.push_back({choice, estimate(block, target)});
      }
    }
  }
  sort_best_first(ranked, [](const ColumnChoice& choice) { return std::pair(-choice.threads_x, choice.unroll); });
  return ranked;
}

}  // namespace fuseloom::schedule
