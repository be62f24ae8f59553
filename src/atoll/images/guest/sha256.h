/* SHA-256 (FIPS 180-4) of bytes in memory. Pure. */
#ifndef SHA256_H
#define SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_HEX = 65 };

/* The digest in hexadecimal, with its terminating zero. */
void sha256_hex(const uint8_t *data, size_t length, char hex[SHA256_HEX]);

#endif
