/* Who this guest is, as far as it knows. Filled in by main.c, shown by server.c. */
#ifndef INSTANCE_H
#define INSTANCE_H

#include <stdbool.h>

#include "dhcp_message.h"
#include "network.h"
#include "sha256.h"

struct instance {
    struct nic nic;
    struct lease lease;
    char id[128]; /* empty: the metadata service gave none */
    char machine_id[33];
    char random[33]; /* drawn when it became somebody: two machines that show the same share their secrets */
    char user_data_sha256[SHA256_HEX];
    bool script_ended;
    int script_status;
};

#endif
