/* A program that leaves its session and forks again every 50 microseconds: each generation lives only that long. Notes
 * its number in the file that is its argument, over and over. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct timespec pause = {0, 50000};
    char line[16];
    if (argc < 2)
        return 2;
    int out = open(argv[1], O_WRONLY | O_CREAT, 0644);
    if (out < 0)
        return 1;
    signal(SIGTERM, SIG_IGN);
    for (;;) {
        pid_t next = fork();
        if (next > 0)
            _exit(0);
        if (next == 0)
            setsid();
        int length = snprintf(line, sizeof line, "%8d\n", getpid());
        if (pwrite(out, line, length, 0) != length)
            return 1;
        nanosleep(&pause, NULL);
    }
}
