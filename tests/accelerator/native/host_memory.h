// Host memory that the device may reach while the host goes on: pinned by the allocator here, or registered.
#pragma once

#include <sys/mman.h>

#include <map>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include <ATen/core/CachingHostAllocator.h>

#include "stream.h"

namespace sim {

class HostMemory {
 public:
  // Pinned memory. A block that was freed is handed out again as soon as no copy uses it.
  void* pin(size_t bytes) {
    if (bytes == 0) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto size = (bytes + kPage - 1) / kPage * kPage;
    for (auto block = cached_.rbegin(); block != cached_.rend(); ++block) {
      if (block->size != size || !block->idle()) continue;
      const auto address = block->address;
      cached_.erase(std::next(block).base());
      pinned_[address] = {address, size, {}};
      return reinterpret_cast<void*>(address);
    }
    void* made = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    TORCH_CHECK(made != MAP_FAILED, "no host memory to pin");
    const auto address = reinterpret_cast<uintptr_t>(made);
    pinned_[address] = {address, size, {}};
    return made;
  }

  void unpin(void* address) {
    if (address == nullptr || forked) return;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = pinned_.find(reinterpret_cast<uintptr_t>(address));
    cached_.push_back(found->second);
    pinned_.erase(found);
  }

  // Notes that a stream uses pinned memory until it is done with what it has queued now.
  bool used_until(const void* address, RecordPtr record) {
    std::lock_guard<std::mutex> lock(mutex_);
    Block* block = pinned_around(reinterpret_cast<uintptr_t>(address));
    if (block != nullptr) block->uses.push_back(std::move(record));
    return block != nullptr;
  }

  void empty_cache() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Block> still;
    for (auto& block : cached_) {
      if (block.idle())
        munmap(reinterpret_cast<void*>(block.address), block.size);
      else
        still.push_back(block);
    }
    cached_.swap(still);
  }

  // Registers memory of the host, as cudaHostRegister does: its pages exist from then on. Any mapping that may be
  // written will do, one of a memfd too.
  void register_range(uintptr_t address, size_t bytes) {
    start();
    TORCH_CHECK(address != 0 && bytes > 0, "sim error: nothing to register");
    const auto first = address / kPage * kPage;
    const auto end = (address + bytes + kPage - 1) / kPage * kPage;
    TORCH_CHECK(
        madvise(reinterpret_cast<void*>(first), end - first, MADV_POPULATE_WRITE) == 0,
        "sim error: cannot register memory that is not mapped for writing");
    std::unique_lock<std::shared_mutex> lock(registered_mutex_);
    const auto next = registered_.lower_bound(address);
    const bool overlaps_next = next != registered_.end() && next->first < address + bytes;
    const bool overlaps_before =
        next != registered_.begin() && std::prev(next)->first + std::prev(next)->second > address;
    TORCH_CHECK(!overlaps_next && !overlaps_before, "sim error: part or all of the memory is already registered");
    registered_[address] = bytes;
  }

  // Ends a registration. A copy that is still under way fails at its next slice: nobody waited for it.
  void unregister(uintptr_t address) {
    std::unique_lock<std::shared_mutex> lock(registered_mutex_);
    TORCH_CHECK(registered_.erase(address) == 1, "sim error: this memory is not registered");
  }

  bool is_registered(const void* address, size_t bytes) {
    std::shared_lock<std::shared_mutex> lock(registered_mutex_);
    return covers(reinterpret_cast<uintptr_t>(address), bytes);
  }

  bool is_reachable(const void* address, size_t bytes) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (pinned_around(reinterpret_cast<uintptr_t>(address)) != nullptr) return true;
    }
    return is_registered(address, bytes);
  }

  // Runs part of a copy if the memory is still registered, and keeps it so until the part is done.
  template <typename Do>
  void while_registered(const void* address, size_t bytes, const Do& act) {
    std::shared_lock<std::shared_mutex> lock(registered_mutex_);
    TORCH_CHECK(
        covers(reinterpret_cast<uintptr_t>(address), bytes), "host memory was unregistered while a copy used it");
    act();
  }

 private:
  static constexpr size_t kPage = 4096;

  struct Block {
    uintptr_t address;
    size_t size;
    std::vector<RecordPtr> uses;

    bool idle() const {
      for (const auto& use : uses)
        if (!use->done()) return false;
      return true;
    }
  };

  Block* pinned_around(uintptr_t address) {
    auto after = pinned_.upper_bound(address);
    if (after == pinned_.begin()) return nullptr;
    auto& block = std::prev(after)->second;
    return address < block.address + block.size ? &block : nullptr;
  }

  bool covers(uintptr_t address, size_t bytes) const {
    auto after = registered_.upper_bound(address);
    if (after == registered_.begin()) return false;
    const auto& [first, size] = *std::prev(after);
    return address + bytes <= first + size;
  }

  std::mutex mutex_;
  std::map<uintptr_t, Block> pinned_;
  std::vector<Block> cached_;
  std::shared_mutex registered_mutex_;
  std::map<uintptr_t, size_t> registered_;
};

inline HostMemory& host_memory() {
  static auto* one = new HostMemory;
  return *one;
}

inline void unpin(void* address) {
  host_memory().unpin(address);
}

// torch's view of pinned memory: torch.empty(pin_memory=True), Tensor.pin_memory(), torch.accelerator.empty_host_cache().
struct PinnedAllocator final : public at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* address = host_memory().pin(bytes);
    return {address, address, &unpin, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &unpin;
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool record_event(void* address, void*, c10::Stream stream) override {
    return host_memory().used_until(address, streams().get(stream.id()).record());
  }
  void empty_cache() override {
    host_memory().empty_cache();
  }
  at::HostStats get_stats() override {
    return {};
  }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

inline PinnedAllocator& pinned_allocator() {
  static auto* one = new PinnedAllocator;
  return *one;
}

} // namespace sim
