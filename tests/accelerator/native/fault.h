// Errors of the device. As with CUDA they come late, at the next synchronization, and nothing runs after one.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include <c10/util/Exception.h>

namespace sim {

class Fault {
 public:
  void set(const std::string& task, const std::string& reason) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_set_) return;
    text_ = "sim error: " + task + " failed on the device: " + reason +
        "\nErrors of the device are reported at a later call, so the stack above may not be where it began.";
    is_set_ = true;
  }

  void check() {
    if (!is_set_) return;
    std::lock_guard<std::mutex> lock(mutex_);
    throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, 1, text_);
  }

  void clear() {
    std::lock_guard<std::mutex> lock(mutex_);
    is_set_ = false;
  }

  bool is_set() const {
    return is_set_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
  std::atomic<bool> is_set_{false};
};

inline Fault& fault() {
  static auto* one = new Fault;
  return *one;
}

} // namespace sim
