/* A daemon whose first thread has exited while another works on, with a child of its own. Writes both numbers to the
 * file that is its argument, once the first thread is on its way out. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *told;

/* The state of the first thread, as the kernel shows it. */
static char leader(void) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
    FILE *stat = fopen(path, "r");
    char state = '?', *end = NULL;
    if (stat && fgets(line, sizeof line, stat) && (end = strrchr(line, ')')) != NULL)
        state = end[2];
    if (stat)
        fclose(stat);
    return state;
}

static void *work(void *unused) {
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    while (leader() != 'Z')
        usleep(1000);
    FILE *out = fopen(told, "w");
    if (!out)
        exit(1);
    fprintf(out, "%d %d\n", getpid(), child);
    fclose(out);
    for (;;)
        pause();
    return unused;
}

int main(int argc, char **argv) {
    pthread_t thread;
    if (argc < 2)
        return 2;
    told = argv[1];
    signal(SIGTERM, SIG_IGN);
    if (fork() != 0)
        _exit(0);
    setsid();
    if (fork() != 0)
        _exit(0);
    if (pthread_create(&thread, NULL, work, NULL) != 0)
        return 1;
    syscall(SYS_exit, 0);
}
