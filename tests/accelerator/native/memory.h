// Memory of the device: one memfd, mapped twice. Tensors carry addresses of a mapping that nobody may read, kernels
// use the other one. Nothing has to be protected and opened around a kernel, so there is no moment when the host may
// read by accident.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include <c10/core/CachingDeviceAllocator.h>
#include <fcntl.h>

#include "stream.h"

namespace sim {

class Memory {
 public:
  Memory() : capacity_(board().capacity()) {
    file_ = memfd_create("sim", MFD_CLOEXEC);
    TORCH_CHECK(file_ >= 0 && ftruncate(file_, static_cast<off_t>(capacity_)) == 0, "no memory for the sim device");
    base_ = map(PROT_NONE);
    kernels_ = map(PROT_READ | PROT_WRITE);
    holes_[0] = capacity_;
  }

  // The address by which kernels reach what a tensor's address stands for.
  void* seen_by_kernels(const void* address) const {
    if (address == nullptr) return nullptr;
    const auto offset = static_cast<size_t>(static_cast<const char*>(address) - base_);
    TORCH_CHECK(offset < capacity_, "not an address of the sim device");
    return kernels_ + offset;
  }

  void* allocate(size_t bytes) {
    if (bytes == 0) return nullptr;
    const auto size = rounded(bytes);
    std::unique_lock<std::mutex> lock(mutex_);
    release_pending();
    auto& reusable = cached_[{current_id, size}];
    size_t offset = 0;
    if (!reusable.empty()) {
      offset = reusable.back();
      reusable.pop_back();
    } else if (!take(size, offset)) {
      lock.unlock();
      empty_cache();
      lock.lock();
      TORCH_CHECK_WITH(
          OutOfMemoryError, take(size, offset), "sim out of memory: ", bytes, " bytes asked of ", capacity_);
    }
    live_[offset] = {size, current_id, {}};
    allocated_ += size;
    most_allocated_ = std::max(most_allocated_, allocated_);
    fill(offset, size);
    return base_ + offset;
  }

  // Makes a block available to its stream at once, unless another stream was said to use it.
  void free(void* address) {
    if (address == nullptr || forked) return;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto offset = static_cast<size_t>(static_cast<char*>(address) - base_);
    const auto block = live_.at(offset);
    live_.erase(offset);
    allocated_ -= block.size;
    std::vector<RecordPtr> uses;
    for (const auto id : block.users) uses.push_back(streams().get(id).record());
    if (uses.empty())
      cached_[{block.stream, block.size}].push_back(offset);
    else
      pending_.push_back({offset, block, std::move(uses)});
  }

  void used_by(const void* address, c10::StreamId stream) {
    if (address == nullptr) return;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = live_.find(static_cast<size_t>(static_cast<const char*>(address) - base_));
    if (found != live_.end() && found->second.stream != stream) found->second.users.insert(stream);
  }

  // Waits for all streams, and gives what is cached back to the system.
  void empty_cache() {
    streams().synchronize();
    std::lock_guard<std::mutex> lock(mutex_);
    release_pending();
    for (auto& [key, offsets] : cached_)
      for (const auto offset : offsets) give_back(offset, key.second);
    cached_.clear();
  }

  // What is free, and how much there is. Of a device that is shared, what any process has cached is not free.
  std::pair<size_t, size_t> information() {
    if (board().is_shared()) return {capacity_ - std::min<size_t>(capacity_, board().taken()), capacity_};
    std::lock_guard<std::mutex> lock(mutex_);
    return {capacity_ - allocated_, capacity_};
  }

  // Bytes in use now, the most there were, and bytes in use or cached.
  std::array<size_t, 3> usage() {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t free = 0;
    for (const auto& [offset, size] : holes_) free += size;
    return {allocated_, most_allocated_, capacity_ - free};
  }

  void forget_most() {
    std::lock_guard<std::mutex> lock(mutex_);
    most_allocated_ = allocated_;
  }

 private:
  struct Block {
    size_t size;
    c10::StreamId stream;
    std::set<c10::StreamId> users;
  };
  struct Pending {
    size_t offset;
    Block block;
    std::vector<RecordPtr> uses;
  };

  char* map(int rights) const {
    void* at = mmap(nullptr, capacity_, rights, MAP_SHARED | MAP_NORESERVE, file_, 0);
    TORCH_CHECK(at != MAP_FAILED, "the sim device's memory cannot be mapped");
    madvise(at, capacity_, MADV_DONTFORK);
    return static_cast<char*>(at);
  }

  static size_t rounded(size_t bytes) {
    const size_t unit = bytes < (1 << 20) ? 512 : 1 << 16;
    return (bytes + unit - 1) / unit * unit;
  }

  // All bits set are NaN in each floating type, and -1 in each signed one. It is written when memory is had again and
  // not when it is freed, for others may rightly use freed memory until its stream, told to wait for them, goes on.
  void fill(size_t offset, size_t size) const {
    if (!knobs().poison) return;
    char* at = kernels_ + offset;
    current().push("poison", [at, size] { std::memset(at, 0xff, size); });
  }

  void release_pending() {
    std::vector<Pending> still;
    for (auto& waiting : pending_) {
      bool done = true;
      for (const auto& use : waiting.uses) done = done && use->done();
      if (done)
        cached_[{waiting.block.stream, waiting.block.size}].push_back(waiting.offset);
      else
        still.push_back(std::move(waiting));
    }
    pending_.swap(still);
  }

  bool take(size_t size, size_t& offset) {
    for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
      if (hole->second < size) continue;
      if (!board().take(size)) return false;
      offset = hole->first;
      const auto rest = hole->second - size;
      holes_.erase(hole);
      if (rest > 0) holes_[offset + size] = rest;
      return true;
    }
    return false;
  }

  void give_back(size_t offset, size_t size) {
    board().give_back(size);
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(size));
    const auto next = holes_.lower_bound(offset);
    if (next != holes_.end() && offset + size == next->first) {
      size += next->second;
      holes_.erase(next);
    }
    const auto after = holes_.lower_bound(offset);
    if (after != holes_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second == offset) {
        before->second += size;
        return;
      }
    }
    holes_[offset] = size;
  }

  int file_ = -1;
  const size_t capacity_;
  char* base_ = nullptr;
  char* kernels_ = nullptr;
  std::mutex mutex_;
  std::map<size_t, size_t> holes_;
  std::unordered_map<size_t, Block> live_;
  std::map<std::pair<c10::StreamId, size_t>, std::vector<size_t>> cached_;
  std::vector<Pending> pending_;
  size_t allocated_ = 0;
  size_t most_allocated_ = 0;
};

inline Memory& memory() {
  start();
  static auto* one = new Memory;
  return *one;
}

inline void release(void* address) {
  if (!forked) memory().free(address);
}

// torch's view of it: torch.accelerator.memory_allocated() and the rest read this.
struct Allocator final : public c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* address = memory().allocate(bytes);
    return {address, address, &release, device()};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    void* target = memory().seen_by_kernels(to);
    const void* source = memory().seen_by_kernels(from);
    current().push("copy of an allocation", [=] { std::memcpy(target, source, bytes); });
  }
  bool initialized() override {
    return started && !forked;
  }
  void emptyCache(c10::MempoolId_t) override {
    memory().empty_cache();
  }
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    memory().used_by(pointer.get(), stream.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    const auto [now, most, reserved] = memory().usage();
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = static_cast<int64_t>(now);
    stats.allocated_bytes[0].peak = static_cast<int64_t>(most);
    stats.reserved_bytes[0].current = static_cast<int64_t>(reserved);
    stats.reserved_bytes[0].peak = static_cast<int64_t>(reserved);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {
    memory().forget_most();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    return memory().information();
  }
};

inline Allocator& allocator() {
  static auto* one = new Allocator;
  return *one;
}

} // namespace sim
