#include "server/http/exchange.h"

#include <utility>

#include "server/http/error_body.h"

namespace nibble::server::http {

ExchangeState::News ExchangeState::take_news() {
  const std::lock_guard lock(mutex_);
  has_news_ = false;
  return std::exchange(news_, News{});
}

void ExchangeState::notify() {  // mutex_ held
  if (!has_news_ && !disconnected_ && wake_) {
    has_news_ = true;
    wake_();
  }
}

void ExchangeState::mark_disconnected() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    if (disconnected_) {
      return;
    }
    disconnected_ = true;
    news_ = {};
    callback = std::move(on_disconnect_);
    on_disconnect_ = nullptr;
  }
  if (callback) {
    callback();
  }
}

void ExchangeState::detach() {
  const std::lock_guard lock(mutex_);
  wake_ = nullptr;
}

Exchange::~Exchange() {
  if (!answered()) {
    respond({500,
             "application/json",
             error_body(500, "the request was dropped", "", ErrorShape::Both),
             {}});
  } else {
    finish();
  }
}

void Exchange::respond(Response response) {
  std::function<void()> dropped;  // destroyed outside the lock
  const std::lock_guard lock(state_->mutex_);
  if (state_->answered_) {
    return;
  }
  state_->answered_ = state_->finished_ = true;
  dropped = std::move(state_->on_disconnect_);
  state_->on_disconnect_ = nullptr;
  state_->news_.response = std::move(response);
  state_->news_.finished = true;
  state_->notify();
}

void Exchange::start_stream(std::string content_type) {
  const std::lock_guard lock(state_->mutex_);
  if (state_->answered_) {
    return;
  }
  state_->answered_ = state_->streaming_ = true;
  state_->news_.stream_opened = std::move(content_type);
  state_->notify();
}

void Exchange::write(std::string_view bytes) {
  const std::lock_guard lock(state_->mutex_);
  if (!state_->streaming_ || state_->finished_ || state_->disconnected_) {
    return;
  }
  state_->news_.bytes.append(bytes);
  state_->notify();
}

void Exchange::finish() {
  std::function<void()> dropped;
  const std::lock_guard lock(state_->mutex_);
  if (!state_->streaming_ || state_->finished_) {
    return;
  }
  state_->finished_ = true;
  dropped = std::move(state_->on_disconnect_);
  state_->on_disconnect_ = nullptr;
  state_->news_.finished = true;
  state_->notify();
}

bool Exchange::answered() const {
  const std::lock_guard lock(state_->mutex_);
  return state_->answered_;
}

size_t Exchange::queued_bytes() const {
  const std::lock_guard lock(state_->mutex_);
  return state_->news_.bytes.size();
}

bool Exchange::disconnected() const {
  const std::lock_guard lock(state_->mutex_);
  return state_->disconnected_;
}

void Exchange::on_disconnect(std::function<void()> callback) {
  {
    const std::lock_guard lock(state_->mutex_);
    if (state_->finished_) {
      return;
    }
    if (!state_->disconnected_) {
      std::swap(state_->on_disconnect_, callback);
      return;
    }
  }
  callback();
}

}  // namespace nibble::server::http
