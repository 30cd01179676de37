// Copies between host and device: in slices, over a link of a set bandwidth, in the order of a stream.
#pragma once

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>

#include <ATen/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "host_memory.h"
#include "memory.h"

namespace sim {

// One direction of the link. What several streams copy at once shares it.
class Link {
 public:
  void move(void* to, const void* from, size_t bytes) {
    const auto until = reserve(bytes);
    std::memcpy(to, from, bytes);
    std::this_thread::sleep_until(until);
  }

 private:
  Clock::time_point reserve(size_t bytes) {
    const auto bandwidth = knobs().bandwidth.load();
    const auto now = Clock::now();
    if (bandwidth <= 0) return now;
    const auto takes = std::chrono::duration<double>(static_cast<double>(bytes) / bandwidth);
    std::lock_guard<std::mutex> lock(mutex_);
    free_at_ = std::max(free_at_, now) + std::chrono::duration_cast<Clock::duration>(takes);
    return free_at_;
  }

  std::mutex mutex_;
  Clock::time_point free_at_;
};

inline Link& to_host() {
  static auto* one = new Link;
  return *one;
}

inline Link& to_device() {
  static auto* one = new Link;
  return *one;
}

// A tensor of the CPU over the memory that a device tensor stands for. It owns nothing.
inline at::Tensor seen_by_kernels(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  void* base = memory().seen_by_kernels(storage.data());
  c10::Storage view(
      c10::Storage::use_byte_size_t(), storage.nbytes(), c10::DataPtr(base, c10::Device(c10::DeviceType::CPU)));
  auto seen = at::detail::make_tensor<c10::TensorImpl>(
      std::move(view), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = seen.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return seen;
}

// Queues a copy between host memory and what kernels see of the device's. If `blocking`, it has ended on return.
inline void transfer(void* to, const void* from, size_t bytes, bool from_device, bool blocking) {
  const void* host = from_device ? to : from;
  const bool registered = host_memory().is_registered(host, bytes);
  auto& queue = current();
  queue.push(from_device ? "copy to host" : "copy to device", [=] {
    auto& link = from_device ? to_host() : to_device();
    const auto slice = static_cast<size_t>(std::max<int64_t>(knobs().slice_bytes, 1));
    for (size_t done = 0; done < bytes; done += slice) {
      if (done > 0) running->delay();
      const auto part = std::min(slice, bytes - done);
      const auto move = [&] { link.move(static_cast<char*>(to) + done, static_cast<const char*>(from) + done, part); };
      if (registered)
        host_memory().while_registered(static_cast<const char*>(host) + done, part, move);
      else
        move();
    }
  });
  if (blocking) {
    queue.drain();
    fault().check();
  } else {
    host_memory().used_until(host, queue.record());
  }
}

inline bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
      a.is_non_overlapping_and_dense();
}

inline at::Tensor empty_like_on(const at::Tensor& like, c10::Device where) {
  return at::empty_strided(like.sizes(), like.strides(), like.options().device(where).pinned_memory(false));
}

inline void copy_on_device(const at::Tensor& from, const at::Tensor& to) {
  current().push("aten::_copy_from", [source = seen_by_kernels(from), target = seen_by_kernels(to)]() mutable {
    target.copy_(source);
  });
}

inline void copy_to_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (!to.is_non_overlapping_and_dense()) {
    auto whole = at::empty(to.sizes(), to.options().pinned_memory(false));
    copy_to_host(from, whole, false);
    to.copy_(whole);
    return;
  }
  auto source = from;
  if (!same_layout(from, to)) {
    source = empty_like_on(to, from.device());
    copy_on_device(from, source);
  }
  const auto bytes = static_cast<size_t>(to.nbytes());
  // As CUDA does, a copy into memory that the device cannot reach by itself has ended when the call returns.
  const bool blocking = !non_blocking || !host_memory().is_reachable(to.data_ptr(), bytes);
  transfer(to.data_ptr(), memory().seen_by_kernels(source.data_ptr()), bytes, true, blocking);
}

inline void copy_to_device(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (!same_layout(from, to)) {
    auto source = from.to(to.scalar_type()).expand(to.sizes()).contiguous();
    auto target = at::empty(to.sizes(), to.options());
    copy_to_device(source, target, false);
    copy_on_device(target, to);
    return;
  }
  const auto bytes = static_cast<size_t>(to.nbytes());
  const bool blocking = !non_blocking || !host_memory().is_reachable(from.data_ptr(), bytes);
  transfer(memory().seen_by_kernels(to.data_ptr()), from.data_ptr(), bytes, false, blocking);
}

inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return to;
  if (from.is_privateuseone() && to.is_privateuseone())
    copy_on_device(from, to);
  else if (from.is_privateuseone())
    copy_to_host(from, to, non_blocking);
  else
    copy_to_device(from, to, non_blocking);
  return to;
}

} // namespace sim
