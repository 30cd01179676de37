// What a test may set: how the device delays, how fast its link is, whether freed memory is poisoned.
#pragma once

#include <atomic>
#include <cstdint>

namespace sim {

struct Knobs {
  std::atomic<uint64_t> seed{0};
  // Each task, and each slice of a copy, waits up to delay_us first, with this chance.
  std::atomic<int64_t> delay_us{0};
  std::atomic<double> chance{1.0};
  // Bytes per second of the link between host and device, in each direction. 0: as fast as the processor copies.
  std::atomic<double> bandwidth{0};
  std::atomic<int64_t> slice_bytes{1 << 20};
  // Memory that is taken is filled with NaN, in the order of its stream.
  std::atomic<bool> poison{true};
  // Each task ends before the host goes on: what fails with delays and passes so is a race.
  std::atomic<bool> synchronous{false};
  // The fault that a process group must not have: futures of collectives do not wait for the collective's stream.
  std::atomic<bool> early_futures{false};
};

inline Knobs& knobs() {
  static auto* all = new Knobs;
  return *all;
}

} // namespace sim
