#include "lanes_setup.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>

namespace qts::events {

namespace {

// Sets which parts of an event the lane's policy and the handlers need.
void set_needs(const LaneCore& core, EventTypeInfo& info, bool audited) {
  const OverflowPolicy policy = core.lanes[info.lane].queue.policy();
  const bool drops_oldest = policy == OverflowPolicy::drop_oldest;
  info.needs_can_drop = drops_oldest || policy == OverflowPolicy::sample;
  info.needs_key = policy == OverflowPolicy::collapse || drops_oldest || info.batched || info.compiled;
  info.needs_hash = info.needs_key && (!drops_oldest || info.batched || info.compiled || audited);
}

HandlerKind kind_named(const std::string& name) {
  if (name == "batch") return HandlerKind::batch;
  if (name == "rows") return HandlerKind::rows;
  return name == "managed" ? HandlerKind::managed : HandlerKind::plain;
}

}  // namespace

std::array<LaneSpec, Lanes::kLanes> make_specs(const std::array<LaneSpecTuple, Lanes::kLanes>& tuples) {
  std::array<LaneSpec, Lanes::kLanes> specs{};
  for (std::size_t i = 0; i < Lanes::kLanes; ++i) {
    const auto& [capacity, policy, share, batch, window, by_key] = tuples[i];
    const std::pair<const char*, OverflowPolicy> known[] = {{"block", OverflowPolicy::block},
                                                            {"drop_oldest", OverflowPolicy::drop_oldest},
                                                            {"collapse", OverflowPolicy::collapse},
                                                            {"sample", OverflowPolicy::sample}};
    const auto* found = std::find_if(std::begin(known), std::end(known), [&](auto& each) { return policy == each.first; });
    if (found == std::end(known))
      throw nb::value_error(("policy must be block, drop_oldest, collapse or sample, not " + policy).c_str());
    if (capacity == 0 || batch == 0) throw nb::value_error("capacity and batch must be 1 or more");
    specs[i] = {capacity, found->second, share, batch, window, by_key};
  }
  return specs;
}

std::size_t add_type(LaneCore& core, std::uint8_t lane, nb::object payload, nb::object key,
                     const std::vector<std::pair<nb::str, unsigned>>& fields, bool checked_in_python,
                     double time_limit_ms) {
  if (lane >= Lanes::kLanes) throw nb::value_error("lane must be 0, 1, 2 or 3");
  auto info = std::make_unique<EventTypeInfo>();
  info->lane = lane;
  info->has_key = !key.is_none();
  if (info->has_key) info->key = FieldAccessor(payload, nb::cast<std::string>(key).c_str());
  for (const auto& [name, allowed] : fields) info->fields.push_back({FieldAccessor(payload, name.c_str()), allowed});
  info->payload = std::move(payload);
  info->checked_in_python = checked_in_python;
  if (time_limit_ms > 0) info->time_limit = tick_scale().span_ticks(static_cast<std::uint64_t>(time_limit_ms * 1e6));
  set_needs(core, *info, core.lanes.audit().on());
  core.contract.types.push_back(std::move(info));
  return core.contract.types.size() - 1;
}

void add_watcher(LaneCore& core, std::size_t type, nb::object watcher, const std::string& field) {
  EventTypeInfo& info = *core.contract.types.at(type);
  if (!info.has_key) throw nb::value_error("a type without a key cannot have a watcher");
  info.price = FieldAccessor(info.payload, field.c_str());
  info.tick_watchers.push_back(nb::cast<TickWatcher*>(watcher));
  info.watchers.push_back(std::move(watcher));
}

void set_handlers(LaneCore& core, std::size_t type, const std::vector<HandlerTuple>& handlers) {
  EventTypeInfo& info = *core.contract.types.at(type);
  info.handlers.clear();
  info.batched = info.compiled = info.needs_python = false;
  std::uint64_t window = 0;
  for (const auto& [kind, target, state, essential] : handlers) {
    Handler handler{};
    handler.essential = essential;
    if (kind == "compiled") {
      handler.kind = HandlerKind::compiled;
      handler.function = reinterpret_cast<void (*)(const EventRecord*, void*)>(nb::cast<std::uintptr_t>(target));
      handler.state = reinterpret_cast<void*>(static_cast<std::uintptr_t>(state));
      info.compiled = true;
    } else {
      handler.kind = kind_named(kind);
      handler.callable = target;
#if !defined(Py_LIMITED_API)
      if (vectorcallfunc own = PyVectorcall_Function(target.ptr())) handler.call = own;
#endif
      if (handler.kind == HandlerKind::managed) window = state;
      info.needs_python = true;
    }
    info.batched = info.batched || handler.kind == HandlerKind::batch || handler.kind == HandlerKind::rows;
    info.compiled = info.compiled || handler.kind == HandlerKind::rows;  // it reads the record too
    info.handlers.push_back(std::move(handler));
  }
  info.needs_python = info.needs_python || info.handlers.empty();
  info.has_window = window != 0;
  core.lanes[info.lane].queue.change_limits([&](TypeLimits& limits) {
    limits.set_window(static_cast<std::uint32_t>(type), static_cast<std::uint32_t>(window));
  });
  set_needs(core, info, core.lanes.audit().on());
}

}  // namespace qts::events
