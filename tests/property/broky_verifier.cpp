// Reads frames from standard input, each behind four bytes with its length, and answers 1 or 0: whether FlatBuffers finds it sound.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "broky_generated.h"

int main() {
  uint32_t size;
  while (fread(&size, sizeof size, 1, stdin) == 1) {
    std::vector<uint64_t> aligned(size / 8 + 1);
    uint8_t *frame = reinterpret_cast<uint8_t *>(aligned.data());
    if (fread(frame, 1, size, stdin) != size) return 1;
    flatbuffers::Verifier verifier(frame, size);
    putchar(broky::VerifySizePrefixedFrameBuffer(verifier) ? '1' : '0');
    fflush(stdout);
  }
  return 0;
}
