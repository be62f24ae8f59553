/* Disks by name, and file systems that grow with them. */
#ifndef DISKS_H
#define DISKS_H

/* From now on every virtio disk is at /dev/disk/by-id/virtio-SERIAL, also those that come later. */
void disks_start(void);

/* The program `resize2fs DEVICE`: the mounted ext4 file system on it becomes as large as the device. */
int disks_resize2fs(int count, char *const words[]);

#endif
