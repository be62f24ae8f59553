/* The power button, and the end of the machine. */
#ifndef POWER_H
#define POWER_H

enum end { END_POWER_OFF, END_REBOOT };

/* Calls `pressed` when the ACPI power button was. Needs the button module. */
void power_watch_button(void (*pressed)(void));

/* Ends all processes, syncs, and powers off or reboots. */
void power_end(enum end end);

#endif
