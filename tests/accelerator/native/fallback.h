// Every operator that has no kernel here: the meta kernel gives the sizes of the results at once, and the CPU's kernel
// is queued on the stream. What has no meta kernel, because its sizes depend on data, waits for its result as with CUDA.
#pragma once

#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty_strided.h>

#include "copies.h"
#include "random.h"

namespace sim {

using Stack = torch::jit::Stack;

// Names of the operators that made the host wait, for tests that say there are none.
class Waited {
 public:
  void add(const std::string& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    names_.insert(name);
  }
  std::set<std::string> take() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(names_, {});
  }

 private:
  std::mutex mutex_;
  std::set<std::string> names_;
};

inline Waited& waited() {
  static auto* one = new Waited;
  return *one;
}

template <typename Change>
c10::IValue with_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    const auto tensor = value.toTensor();
    return tensor.defined() ? change(tensor) : tensor;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> changed;
    for (const auto& tensor : value.toTensorVector()) changed.push_back(change(tensor));
    return changed;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> changed;
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList())
      changed.push_back(tensor && tensor->defined() ? std::optional<at::Tensor>(change(*tensor)) : tensor);
    return changed;
  }
  return value;
}

inline at::Tensor meta_of(const at::Tensor& tensor) {
  if (!tensor.is_privateuseone()) return tensor;
  at::Tensor meta(at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

// A tensor of the host among the arguments: its value now is meant, whatever the host does with it afterwards.
inline at::Tensor value_now(const c10::OperatorHandle& op, const at::Tensor& tensor) {
  const bool indexes = op.operator_name().name.find("index") != std::string::npos;
  TORCH_CHECK(
      tensor.dim() == 0 || indexes, "Expected all tensors to be on the same device, but found at least two devices, ",
      device(), " and ", tensor.device(), "! (", op.operator_name().name, ")");
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  return tensor.detach().clone();
}

class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack) : op_(op), schema_(op.schema()), stack_(stack) {
    const auto last = torch::jit::last(*stack, schema_.arguments().size());
    arguments_.assign(last.begin(), last.end());
  }

  void run() {
    auto host = for_kernel();
    Stack results;
    if (!only_tensors() || !queued(host, results)) results = awaited(std::move(host));
    torch::jit::drop(*stack_, arguments_.size());
    for (auto& result : results) stack_->push_back(std::move(result));
  }

 private:
  bool only_tensors() const {
    for (const auto& result : schema_.returns()) {
      const auto type = result.type();
      const bool list = type->kind() == c10::TypeKind::ListType &&
          type->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::TensorType;
      if (type->kind() != c10::TypeKind::TensorType && !list) return false;
    }
    return true;
  }

  Stack for_kernel() const {
    Stack host;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const auto& value = arguments_[i];
      if (takes_generator(i)) {
        host.push_back(at::detail::createCPUGenerator(next_seed(value)));
      } else if (value.isDevice()) {
        host.push_back(c10::Device(c10::DeviceType::CPU));
      } else {
        host.push_back(with_tensors(value, [this](const at::Tensor& tensor) {
          return tensor.is_privateuseone() ? seen_by_kernels(tensor) : value_now(op_, tensor);
        }));
      }
    }
    return host;
  }

  bool takes_generator(size_t i) const {
    const auto type = schema_.arguments()[i].type();
    if (type->kind() == c10::TypeKind::GeneratorType) return true;
    const auto* optional = type->castRaw<c10::OptionalType>();
    return optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
  }

  // Queues the kernel, and makes tensors for its results. Returns false if their sizes are not known beforehand.
  bool queued(Stack& host, Stack& results) {
    std::vector<at::Tensor> targets;
    if (!schema_.returns().empty()) {
      Stack meta;
      if (!in_meta(meta)) return false;
      for (size_t i = 0; i < meta.size(); ++i) results.push_back(result_like(i, meta[i], targets));
      if (resized_) host = for_kernel();
    }
    current().push(name(), [op = op_, host = std::move(host), targets = std::move(targets)]() mutable {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &host);
      auto target = targets.begin();
      for (const auto& value : host)
        with_tensors(value, [&](const at::Tensor& made) {
          if (target != targets.end() && target->defined() && !made.is_alias_of(*target)) {
            TORCH_CHECK(
                made.sizes() == target->sizes(), "the meta kernel gave the size ", target->sizes(), ", the CPU's ",
                made.sizes());
            target->copy_(made);
          }
          if (target != targets.end()) ++target;
          return made;
        });
    });
    return true;
  }

  bool in_meta(Stack& meta) {
    if (!op_.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return false;
    for (const auto& value : arguments_) {
      if (value.isDevice())
        meta.push_back(c10::Device(c10::DeviceType::Meta));
      else if (value.isGenerator())
        meta.push_back(c10::IValue());
      else
        meta.push_back(with_tensors(value, &meta_of));
    }
    const Stack before = meta;
    try {
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &meta);
    } catch (const std::exception&) {
      return false; // the CPU's kernel says what is wrong, or knows the sizes
    }
    resize_outputs(before);
    return true;
  }

  void resize_outputs(const Stack& meta) {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (!is_written(schema_.arguments()[i]) || !arguments_[i].isTensor()) continue;
      const auto tensor = arguments_[i].toTensor();
      const auto wanted = meta[i].toTensor();
      if (!tensor.defined() || tensor.sizes() == wanted.sizes()) continue;
      tensor.resize_(wanted.sizes());
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(wanted.sizes(), wanted.strides());
      resized_ = true;
    }
  }

  c10::IValue result_like(size_t i, const c10::IValue& meta, std::vector<at::Tensor>& targets) {
    const auto& result = schema_.returns()[i];
    const auto* argument = aliased(result);
    if (argument != nullptr && is_written(result)) {
      with_tensors(*argument, [&](const at::Tensor& tensor) {
        targets.emplace_back();
        return tensor;
      });
      return *argument;
    }
    return with_tensors(meta, [&](const at::Tensor& like) {
      if (argument != nullptr) {
        targets.emplace_back();
        const auto base = argument->toTensor();
        return base.as_strided(like.sizes(), like.strides(), base.storage_offset() + like.storage_offset());
      }
      auto made = at::empty_strided(like.sizes(), like.strides(), like.options().device(device()));
      targets.push_back(seen_by_kernels(made));
      return made;
    });
  }

  const c10::IValue* aliased(const c10::Argument& result) const {
    if (result.alias_info() == nullptr) return nullptr;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const auto* info = schema_.arguments()[i].alias_info();
      if (info != nullptr && info->beforeSets() == result.alias_info()->beforeSets()) return &arguments_[i];
    }
    return nullptr;
  }

  static bool is_written(const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  }

  // Runs the kernel in the stream's order and waits for it.
  Stack awaited(Stack host) {
    waited().add(op_.operator_name().name);
    auto shared = std::make_shared<Stack>(std::move(host));
    auto failed = std::make_shared<std::exception_ptr>();
    auto& queue = current();
    queue.push(name(), [op = op_, shared, failed] {
      try {
        op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), shared.get());
      } catch (const std::exception&) {
        *failed = std::current_exception();
      }
    });
    queue.drain();
    fault().check();
    if (*failed) std::rethrow_exception(*failed);
    Stack results;
    for (size_t i = 0; i < shared->size(); ++i) {
      const auto& result = schema_.returns()[i];
      const auto* argument = is_written(result) ? aliased(result) : nullptr;
      if (argument != nullptr)
        results.push_back(*argument);
      else
        results.push_back(with_tensors((*shared)[i], &to_device_again));
    }
    return results;
  }

  static at::Tensor to_device_again(const at::Tensor& made) {
    auto moved = at::empty_strided(made.sizes(), made.strides(), made.options().device(device()));
    current().push("result", [made, target = seen_by_kernels(moved)]() mutable { target.copy_(made); });
    return moved;
  }

  std::string name() const {
    const auto& full = op_.operator_name();
    return full.overload_name.empty() ? full.name : full.name + "." + full.overload_name;
  }

  const c10::OperatorHandle op_;
  const c10::FunctionSchema& schema_;
  Stack* stack_;
  Stack arguments_;
  bool resized_ = false;
};

inline void fallback(const c10::OperatorHandle& op, Stack* stack) {
  Call(op, stack).run();
}

} // namespace sim
