/* The client of the metadata service. */
#ifndef METADATA_H
#define METADATA_H

#include <stddef.h>
#include <stdint.h>

struct metadata {
    const char *instance_id; /* empty when the service gave none */
    const uint8_t *user_data;
    size_t user_data_length;
};

/* Asks until the service has answered, then calls `done` once; what it gets is gone afterwards. */
void metadata_start(void (*done)(const struct metadata *metadata));

/* Asks no more, and forgets what was answered. */
void metadata_stop(void);

#endif
