#include "checkpoint/verify.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include <openssl/evp.h>

namespace nibble::checkpoint {

namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

std::string name_of(const SafetensorsFile& file) {
  return file.path().substr(file.path().find_last_of('/') + 1);
}

Result<void> check_size(const ReadFile& file, const ManifestFile& expected) {
  if (file.size_bytes() != expected.size_bytes) {
    return invalid("the manifest says " + std::to_string(expected.size_bytes) +
                       " bytes, the file has " + std::to_string(file.size_bytes()),
                   file.path());
  }
  return {};
}

Result<void> check_hash(const ReadFile& file,
                        const ManifestFile& expected,
                        const std::stop_token& stop) {
  if (expected.sha256.empty()) {
    return {};
  }
  const std::string found = TRY(sha256_of(file, stop));
  if (found != expected.sha256) {
    return invalid("the manifest says sha256 " + expected.sha256 + ", the file has " + found,
                   file.path());
  }
  return {};
}

}  // namespace

Result<std::string> sha256_of(const ReadFile& file, const std::stop_token& stop) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  const auto failed = [&] {
    return fail(ErrorCode::Internal, "the crypto library has no SHA-256", file.path());
  };
  if (context == nullptr || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) {
    return failed();
  }
  std::vector<std::byte> piece(kPieceBytes);
  for (uint64_t offset = 0; offset < file.size_bytes(); offset += piece.size()) {
    if (stop.stop_requested()) {
      return fail(ErrorCode::Cancelled, "stopped", file.path());
    }
    const std::span<std::byte> part = std::span(piece).first(
        static_cast<size_t>(std::min<uint64_t>(piece.size(), file.size_bytes() - offset)));
    TRY(file.read_at(offset, part));
    if (EVP_DigestUpdate(context.get(), part.data(), part.size()) != 1) {
      return failed();
    }
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  if (EVP_DigestFinal_ex(context.get(), digest.data(), &size) != 1) {
    return failed();
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < size; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

Result<void> verify_files(const Checkpoint& checkpoint,
                          const Manifest& manifest,
                          VerifyDepth depth,
                          const std::stop_token& stop) {
  std::vector<std::pair<const ReadFile*, const ManifestFile*>> pairs;
  std::vector<ReadFile> others;
  others.reserve(manifest.files.size());  // pairs point into it
  for (const SafetensorsFile& file : checkpoint.files()) {
    const ManifestFile* listed = manifest.find(name_of(file));
    if (listed == nullptr) {
      return invalid("the manifest does not list it", file.path());
    }
    pairs.emplace_back(&file.file(), listed);
  }
  for (const ManifestFile& listed : manifest.files) {
    const bool open = std::any_of(
        pairs.begin(), pairs.end(), [&](const auto& pair) { return pair.second == &listed; });
    if (!open) {
      others.push_back(TRY(ReadFile::open(checkpoint.directory() + "/" + listed.name)));
      pairs.emplace_back(&others.back(), &listed);
    }
  }
  for (const auto& [file, listed] : pairs) {
    TRY(check_size(*file, *listed));
  }
  if (depth == VerifyDepth::Sizes) {
    return {};
  }
  for (const auto& [file, listed] : pairs) {
    TRY(check_hash(*file, *listed, stop));
  }
  return {};
}

}  // namespace nibble::checkpoint
