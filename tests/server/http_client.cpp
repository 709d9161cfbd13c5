#include "server/http_client.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include <arpa/inet.h>
#include <boost/json.hpp>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nibble::test {

std::string HttpReply::header(std::string_view name) const {
  const auto lower = [](std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) {
      return static_cast<char>(std::tolower(c));
    });
    return out;
  };
  const std::string wanted = "\r\n" + lower(name) + ": ";
  const size_t at = lower(head).find(wanted);
  if (at == std::string::npos) {
    return {};
  }
  const size_t begin = at + wanted.size();
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

boost::json::value HttpReply::json() const {
  boost::json::error_code code;
  auto value = boost::json::parse(body, code);
  return code ? boost::json::value() : value;
}

std::vector<std::string> HttpReply::events() const {
  std::vector<std::string> out;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos || body.compare(at, 6, "data: ") != 0) {
      out.push_back("not an event: " + body.substr(at));
      break;
    }
    out.push_back(body.substr(at + 6, end - at - 6));
    at = end + 2;
  }
  return out;
}

HttpClient::HttpClient(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  timeval timeout{10, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    close();
  }
}

HttpClient::~HttpClient() { close(); }

void HttpClient::close() {
  if (socket_ >= 0) {
    ::close(socket_);
    socket_ = -1;
  }
}

bool HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) {
      return false;
    }
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

bool HttpClient::read_more() {
  char bytes[16384];
  const ssize_t count = ::recv(socket_, bytes, sizeof(bytes), 0);
  if (count <= 0) {
    return false;
  }
  buffer_.append(bytes, static_cast<size_t>(count));
  return true;
}

bool HttpClient::read_until(std::string_view text) {
  while (buffer_.find(text) == std::string::npos) {
    if (!read_more()) {
      return false;
    }
  }
  return true;
}

bool HttpClient::at_end() {
  while (read_more()) {
  }
  char byte;
  return ::recv(socket_, &byte, 1, 0) == 0;
}

HttpReply HttpClient::read_reply(bool is_head) {
  HttpReply reply;
  if (!read_until("\r\n\r\n")) {
    return reply;
  }
  const size_t head_end = buffer_.find("\r\n\r\n") + 4;
  reply.head = buffer_.substr(0, head_end);
  buffer_.erase(0, head_end);
  reply.status = std::atoi(reply.head.c_str() + std::string_view("HTTP/1.1 ").size());
  if (is_head) {
    return reply;
  }
  if (reply.header("Transfer-Encoding") == "chunked") {
    for (;;) {
      if (!read_until("\r\n")) {
        return {};
      }
      const size_t line_end = buffer_.find("\r\n");
      const size_t size = std::strtoul(buffer_.c_str(), nullptr, 16);
      while (buffer_.size() < line_end + 2 + size + 2) {
        if (!read_more()) {
          return {};
        }
      }
      reply.body += buffer_.substr(line_end + 2, size);
      buffer_.erase(0, line_end + 2 + size + 2);
      if (size == 0) {
        return reply;
      }
    }
  }
  const size_t size = std::strtoul(reply.header("Content-Length").c_str(), nullptr, 10);
  while (buffer_.size() < size) {
    if (!read_more()) {
      return {};
    }
  }
  reply.body = buffer_.substr(0, size);
  buffer_.erase(0, size);
  return reply;
}

HttpReply HttpClient::request(std::string_view method,
                              std::string_view path,
                              std::string_view body,
                              std::string_view extra_headers) {
  std::string text = std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: test\r\n";
  text += extra_headers;
  if (!body.empty() || method == "POST") {
    if (extra_headers.find("Content-Type") == std::string_view::npos) {
      text += "Content-Type: application/json\r\n";
    }
    text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  }
  text += "\r\n";
  text += body;
  send(text);
  return read_reply(method == "HEAD");
}

HttpReply http(uint16_t port,
               std::string_view method,
               std::string_view path,
               std::string_view body,
               std::string_view extra_headers) {
  HttpClient client(port);
  return client.request(method, path, body, extra_headers);
}

}  // namespace nibble::test
