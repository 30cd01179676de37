// What a process has of the device from its first use on: its context, and its share of memory that processes share.
#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <thread>

#include <c10/util/Exception.h>

namespace sim {

inline uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* asked = std::getenv(name);
  return asked != nullptr ? std::strtoull(asked, nullptr, 10) : otherwise;
}

// The device's memory, as far as processes share it: how much each has taken, in the file that SIM_DEVICE_BOARD names.
// A process has a slot for as long as it lives, by a lock that the kernel releases at its end and that no fork has.
class Board {
 public:
  Board() : capacity_(from_environment("SIM_DEVICE_BYTES", uint64_t{8} << 30)) {
    const char* path = std::getenv("SIM_DEVICE_BOARD");
    if (path == nullptr) return;
    file_ = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    TORCH_CHECK(file_ >= 0 && ftruncate(file_, sizeof(Slots)) == 0, "sim error: no board at ", path);
    void* at = mmap(nullptr, sizeof(Slots), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    TORCH_CHECK(at != MAP_FAILED, "sim error: the board cannot be mapped");
    slots_ = static_cast<Slots*>(at);
    for (own_ = 0; own_ < kMost; ++own_) {
      auto lock = lock_of(own_);
      if (fcntl(file_, F_SETLK, &lock) == 0) break;
    }
    TORCH_CHECK(own_ < kMost, "sim error: more processes than a board has slots");
    (*slots_)[own_] = 0;
  }

  uint64_t capacity() const {
    return capacity_;
  }

  bool is_shared() const {
    return slots_ != nullptr;
  }

  // Returns whether the device has that much for this process.
  bool take(uint64_t bytes) {
    if (!is_shared()) return true;
    (*slots_)[own_] += bytes;
    if (taken() <= capacity_) return true;
    give_back(bytes);
    return false;
  }

  void give_back(uint64_t bytes) {
    if (is_shared()) (*slots_)[own_] -= bytes;
  }

  // Bytes that living processes have.
  uint64_t taken() const {
    uint64_t sum = 0;
    for (size_t slot = 0; slot < kMost; ++slot) {
      auto lock = lock_of(slot);
      const bool lives = slot == own_ || (fcntl(file_, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK);
      if (lives) sum += (*slots_)[slot];
    }
    return sum;
  }

 private:
  static constexpr size_t kMost = 64;
  using Slots = std::array<std::atomic<uint64_t>, kMost>;

  static struct flock lock_of(size_t slot) {
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = static_cast<off_t>(slot);
    lock.l_len = 1;
    return lock;
  }

  const uint64_t capacity_;
  int file_ = -1;
  Slots* slots_ = nullptr;
  size_t own_ = 0;
};

inline Board& board() {
  static auto* one = new Board;
  return *one;
}

// Threads and mappings of the device do not survive a fork, so a process that forked after the first use has none.
inline std::atomic<bool> started{false};
inline std::atomic<bool> forked{false};

inline void watch_forks() {
  pthread_atfork(nullptr, nullptr, [] {
    if (started) forked = true;
  });
}

// Makes the context, which takes SIM_CONTEXT_MS and SIM_CONTEXT_BYTES.
inline void start() {
  TORCH_CHECK(
      !forked,
      "Cannot re-initialize sim in forked subprocess. To use sim with multiprocessing, you must use the 'spawn' start "
      "method");
  if (started) return;
  static std::mutex making;
  std::lock_guard<std::mutex> lock(making);
  if (started) return;
  const auto bytes = from_environment("SIM_CONTEXT_BYTES", 0);
  TORCH_CHECK_WITH(OutOfMemoryError, board().take(bytes), "sim out of memory: ", bytes, " bytes asked for a context");
  std::this_thread::sleep_for(std::chrono::milliseconds(from_environment("SIM_CONTEXT_MS", 0)));
  started = true;
}

} // namespace sim
