// A blocking HTTP/1.1 client for tests: bytes in, bytes out, nothing hidden.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json/value.hpp>

namespace nibble::test {

struct HttpReply {
  int status = 0;  // 0: the connection ended without an answer
  std::string head;
  std::string body;  // de-chunked

  std::string header(std::string_view name) const;
  boost::json::value json() const;          // of the body; a null value when it is not JSON
  std::vector<std::string> events() const;  // the data of each SSE event
};

class HttpClient {
 public:
  explicit HttpClient(uint16_t port);
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  bool send(std::string_view bytes);
  // Sends a whole request on this connection and reads the answer.
  HttpReply request(std::string_view method,
                    std::string_view path,
                    std::string_view body = {},
                    std::string_view extra_headers = {});
  HttpReply read_reply(bool is_head = false);
  // Reads until the text was seen; false at the end of the connection or after 10 s.
  bool read_until(std::string_view text);
  bool at_end();  // waits for the server to close
  void close();

 private:
  bool read_more();
  int socket_ = -1;
  std::string buffer_;
};

// On a connection of its own.
HttpReply http(uint16_t port,
               std::string_view method,
               std::string_view path,
               std::string_view body = {},
               std::string_view extra_headers = {});

}  // namespace nibble::test
