/* Folders of the host, each at its place in this guest. */
#ifndef FOLDERS_H
#define FOLDERS_H

/* Begins to mount those that the host named. Nothing to do where it named none. */
void folders_start(void);

/* Waits until all of them are there, or did not come in time. */
void folders_wait(void);

#endif
